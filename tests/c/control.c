/* Loops whose values and results grow, and choices: results, memory, what fails and what is cancelled.
 *
 * The model: while `v`, which is `x` at first, has less than `limit` elements, it is joined with itself plus one;
 * `grown` is the last one. Each time adds its sum to `sums`, and a row with the places of the elements of `x` that are
 * not zero to `found`. `picked` are the places in `grown` of what is not zero, or `grown` itself, as `flag` says. */
#include "check.h"
#include "heap.h"
#include "control.h"

enum { N = 3, MOST = 64, OUTPUTS = 4 };

static int64_t x[N] = {2, 0, -1}, limit, x_dims[1] = {N};
static unsigned char flag;
static int64_t buffers[OUTPUTS][MOST], dims[OUTPUTS][2];
static onnxc_tensor in[3], out[OUTPUTS];
static onnxc_options options;
static char message[300];
static int64_t workspace_memory[4096];
static char *workspace;

static void reset(void) {
    static const int ranks[OUTPUTS] = {1, 2, 2, 1};
    int at;
    onnxc_options init = ONNXC_OPTIONS_INIT;
    in[0] = onnxc_make_tensor(x, sizeof x, ONNXC_INT64, 1, x_dims);
    in[1] = onnxc_make_tensor(&limit, sizeof limit, ONNXC_INT64, 0, NULL);
    in[2] = onnxc_make_tensor(&flag, sizeof flag, ONNXC_BOOL, 0, NULL);
    for (at = 0; at < OUTPUTS; at++) {
        out[at] = onnxc_make_tensor(buffers[at], sizeof buffers[at], ONNXC_INT64, ranks[at], dims[at]);
    }
    memset(buffers, 0, sizeof buffers);
    dims[1][1] = 1;
    memset(&heap, 0, sizeof heap);
    memset(message, 0, sizeof message);
    cancel = 0;
    options = init;
    options.message = message;
    options.message_capacity = sizeof message;
    options.cancel = &cancel;
    options.allocate = take;
    options.release = give;
    options.allocator = &heap;
    workspace = (char *)workspace_memory;
    workspace += (64 - (uintptr_t)workspace % 64) % 64;
}

static int32_t run(void) {
    int64_t bytes = control_workspace_for(N);
    CHECK(bytes > 0 && bytes < (int64_t)sizeof workspace_memory - 64);
    return control_run(in, 3, out, OUTPUTS, workspace, (size_t)bytes, &options);
}

static void runs(void) {
    int32_t status = run();
    if (status != ONNXC_OK) {
        fprintf(stderr, "limit %d, flag %d: status %d, `%.299s`\n", (int)limit, flag, (int)status, message);
        exit(1);
    }
}

/* The results after `turns` iterations. */
static void results_are(int turns) {
    int64_t v[MOST], sums[MOST];
    int size = N, turn, at, picked = 0;
    memcpy(v, x, sizeof x);
    for (turn = 0; turn < turns; turn++) {
        sums[turn] = 0;
        for (at = 0; at < size; at++) {
            v[size + at] = v[at] + 1;
        }
        size *= 2;
        for (at = 0; at < size; at++) {
            sums[turn] += v[at];
        }
    }
    CHECK(dims[0][0] == size && memcmp(out[0].data, v, 8 * (size_t)size) == 0);
    CHECK(dims[1][0] == turns && dims[1][1] == 1 && memcmp(out[1].data, sums, 8 * (size_t)turns) == 0);
    CHECK(dims[2][0] == turns && dims[2][1] == (turns ? 2 : 0));
    for (turn = 0; turn < turns; turn++) {
        const int64_t *row = (const int64_t *)out[2].data + 2 * turn;
        CHECK(row[0] == 0 && row[1] == 2);
    }
    for (at = 0; at < size; at++) {
        const int64_t *found = (const int64_t *)out[3].data;
        if (!flag) {
            CHECK(found[at] == v[at]);
        } else if (v[at] != 0) {
            CHECK(found[picked++] == at);
        }
    }
    CHECK(dims[3][0] == (flag ? picked : size));
}

static void any_number_of_iterations(void) {
    for (limit = 0; limit <= 40; limit++) {
        int turns = 0, size;
        for (size = N; size < limit; size *= 2) {
            turns++;
        }
        for (flag = 0; flag < 2; flag++) {
            runs();
            results_are(turns);
            CHECK(heap.live == 0 && heap.bytes == 0);
            reset();
        }
    }
}

static void without_data(void) {
    int at;
    for (at = 0; at < OUTPUTS; at++) {
        out[at].data = NULL;
    }
}

static void give_outputs(void) {
    int at;
    for (at = 0; at < OUTPUTS; at++) {
        give(&heap, out[at].data, out[at].bytes, 64);
    }
}

/* Every allocation, each in turn: it fails, or the run is cancelled with blocks live. */
static void allocations_that_fail(void) {
    int at, calls;
    limit = 20;
    for (flag = 0; flag < 2; flag++) {
        without_data();
        runs();
        results_are(3);
        calls = heap.calls;
        CHECK(calls > 8 && heap.live == OUTPUTS);
        give_outputs();
        reset();
        for (at = 1; at <= calls; at++) {
            without_data();
            heap.fail_at = at;
            CHECK(run() == ONNXC_OUT_OF_MEMORY && strstr(message, "the allocator has no") != NULL);
            CHECK(heap.live == 0 && heap.bytes == 0 && out[0].data == NULL && out[3].data == NULL);
            reset();
        }
        for (at = 1; at <= calls; at++) {
            int32_t status;
            without_data();
            heap.cancel_at = at;
            status = run();
            CHECK(status == ONNXC_CANCELLED || status == ONNXC_OK);
            if (status == ONNXC_OK) {
                CHECK(at > calls - OUTPUTS);
                give_outputs();
            }
            CHECK(heap.live == 0 && heap.bytes == 0);
            reset();
        }
    }
    options.allocate = NULL;
    CHECK(run() == ONNXC_NEEDS_ALLOCATOR && heap.live == 0);
    reset();
}

int main(void) {
    reset();
    any_number_of_iterations();
    allocations_that_fail();
    puts("ok");
    return 0;
}
