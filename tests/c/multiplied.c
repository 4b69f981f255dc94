/* Sizes whose bounds multiply: what no machine has room for comes from the allocator, at its size in this run.
 *
 * The model: p is the running sum of the first n elements of `x`, where n counts its positive ones; `y` the sum over all
 * triples of the running maximum along j of the running sum along i of p[i] * sum over l <= k of p[j] * p[l]. */
#include "check.h"
#include "heap.h"
#include "multiplied.h"

enum { N = 2048, MOST = 8 };

static int64_t x[N], y[1], x_dims[1] = {N}, y_dims[3] = {1, 1, 1};
static onnxc_tensor in[1], out[1];
static char *workspace;

static void reset(void) {
    int at;
    for (at = 0; at < N; at++) {
        x[at] = at < MOST ? at + 1 : -at;
    }
    y[0] = -7;
    in[0] = onnxc_make_tensor(x, sizeof x, ONNXC_INT64, 1, x_dims);
    out[0] = onnxc_make_tensor(y, sizeof y, ONNXC_INT64, 3, y_dims);
    fresh_options();
}

static int32_t run(void) {
    return multiplied_run(in, 1, out, 1, workspace, MULTIPLIED_WORKSPACE_BYTES, &options);
}

static int64_t wanted(void) {
    int64_t p[MOST], inner[MOST][MOST], total = 0;
    int i, j, k;
    for (i = 0; i < MOST; i++) {
        p[i] = x[i] + (i > 0 ? p[i - 1] : 0);
    }
    for (j = 0; j < MOST; j++) {
        for (k = 0; k < MOST; k++) {
            inner[j][k] = p[j] * p[k] + (k > 0 ? inner[j][k - 1] : 0);
        }
    }
    for (i = 0; i < MOST; i++) {
        for (j = 0; j < MOST; j++) {
            for (k = 0; k < MOST; k++) {
                int64_t most = 0;
                int a, b;
                for (b = 0; b <= j; b++) {
                    int64_t sum = 0;
                    for (a = 0; a <= i; a++) {
                        sum += inner[b][k] * p[a];
                    }
                    most = sum > most ? sum : most;
                }
                total += most;
            }
        }
    }
    return total;
}

int main(void) {
    int64_t *memory;
    int at, calls;
    /* All pairs of 2048 elements are reserved; all triples would be 64 GiB. */
    CHECK(MULTIPLIED_WORKSPACE_BYTES < (128 << 20));
    memory = (int64_t *)malloc(MULTIPLIED_WORKSPACE_BYTES + 64);
    CHECK(memory != NULL);
    workspace = workspace_in(memory);
    reset();
    CHECK(run() == ONNXC_OK && y[0] == wanted() && heap.live == 0);
    calls = heap.calls;
    CHECK(calls > 0);
    for (at = 1; at <= calls; at++) {
        reset();
        heap.fail_at = at;
        CHECK(run() == ONNXC_OUT_OF_MEMORY && strstr(message, "the allocator has no 4096 bytes") != NULL);
        CHECK(heap.live == 0 && heap.bytes == 0);
    }
    reset();
    options.allocate = NULL;
    CHECK(run() == ONNXC_NEEDS_ALLOCATOR && heap.live == 0 && y[0] == -7);
    free(memory);
    puts("ok");
    return 0;
}
