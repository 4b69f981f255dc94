/* Three models in one program, each run from four threads; and one run split over parts. */
#include "check.h"
#include "again.h"
#include "plus_iota.h"
#include "sum3.h"

#include <pthread.h>

enum { BATCH = 50, COUNT = 4 * BATCH };

static int32_t x[COUNT], y[COUNT];

/* Runs one of the two copies; `z` has COUNT elements. */
static void run(onnxc_run_fn model, int32_t *z, const onnxc_options *options) {
    int64_t dims[2] = {BATCH, 4}, z_dims[2] = {0, 4};
    char memory[4 * COUNT + 256];
    char *workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
    onnxc_tensor in[3], out[1];
    size_t bytes = (size_t)sum3_workspace_for(BATCH);
    CHECK(bytes <= sizeof memory - 64);
    in[0] = onnxc_make_tensor(x, sizeof x, ONNXC_INT32, 2, dims);
    in[1] = onnxc_make_tensor(y, sizeof y, ONNXC_INT32, 2, dims);
    in[2] = onnxc_make_tensor(NULL, 0, 0, 0, NULL);
    out[0] = onnxc_make_tensor(z, 4 * COUNT, ONNXC_INT32, 2, z_dims);
    CHECK(model(in, 3, out, 1, workspace, bytes, options) == ONNXC_OK);
}

static void *worker(void *result) {
    int round;
    for (round = 0; round < 200; round++) {
        int32_t small[6] = {1, 2, 3, 4, 5, 6}, sums[6];
        run(round % 2 ? sum3_run : again_run, (int32_t *)result, NULL);
        CHECK(plus_iota_predict(small, sums, NULL) == ONNXC_OK && sums[5] == 11);
    }
    return NULL;
}

/* Every index on its own, backwards. */
static int32_t one_by_one(void *pool, int64_t begin, int64_t end, onnxc_range_fn body, void *job) {
    ++*(int *)pool;
    while (end-- > begin) {
        int32_t result = body(job, end, end + 1);
        if (result != 0) {
            return result;
        }
    }
    return 0;
}

int main(void) {
    static int32_t results[4][COUNT], split[COUNT];
    pthread_t threads[4];
    onnxc_options options = ONNXC_OPTIONS_INIT;
    int at, loops = 0;
    for (at = 0; at < COUNT; at++) {
        x[at] = at * 3;
        y[at] = at * at;
    }
    for (at = 0; at < 4; at++) {
        CHECK(pthread_create(&threads[at], NULL, worker, results[at]) == 0);
    }
    for (at = 0; at < 4; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
        CHECK(memcmp(results[at], results[0], sizeof results[0]) == 0);
    }
    CHECK(results[0][7] == 21 + 49 + 400);
    options.parallel_for = one_by_one;
    options.pool = &loops;
    run(sum3_run, split, &options);
    CHECK(loops == 2 && memcmp(split, results[0], sizeof split) == 0);
    CHECK(strcmp(onnxc_model_name(sum3_model()), "sum3") == 0);
    CHECK(strcmp(onnxc_model_name(again_model()), "again") == 0);
    puts("ok");
    return 0;
}
