/* Outputs whose rank the run decides: what describes them, memory of the caller and of the run, and wrong descriptors.
 *
 * The model: `y` is `x`, int64 [2, n, 3], without the axis of size n where that is 1; `z` is the sum of `x` where `whole` holds, otherwise
 * its sums over the first two axes, and so of rank 0 or 1. */
#include "check.h"
#include "heap.h"
#include "any_rank.h"

enum { MOST = 4, OUTPUTS = 2 };

static int64_t n, x[2 * MOST * 3], x_dims[3];
static unsigned char whole;
static int64_t y[2 * MOST * 3], z[3], y_dims[3], z_dims[1];
static onnxc_tensor in[2], out[OUTPUTS];
static int64_t workspace_memory[4096];
static char *workspace;

static void reset(void) {
    int at;
    for (at = 0; at < 2 * MOST * 3; at++) {
        x[at] = 7 * at - 20;
    }
    x_dims[0] = 2;
    x_dims[1] = n;
    x_dims[2] = 3;
    in[ANY_RANK_INPUT_X_INDEX] = onnxc_make_tensor(x, (size_t)(8 * 6 * n), ONNXC_INT64, 3, x_dims);
    in[ANY_RANK_INPUT_WHOLE_INDEX] = onnxc_make_tensor(&whole, 1, ONNXC_BOOL, 0, NULL);
    memset(y, 0, sizeof y);
    memset(z, 0, sizeof z);
    y_dims[0] = 2;
    y_dims[1] = y_dims[2] = z_dims[0] = -77;
    out[0] = onnxc_make_tensor(y, sizeof y, ONNXC_INT64, ANY_RANK_OUTPUT_Y_RANK, y_dims);
    out[1] = onnxc_make_tensor(z, sizeof z, ONNXC_INT64, ANY_RANK_OUTPUT_Z_RANK, z_dims);
    fresh_options();
    workspace = workspace_in(workspace_memory);
}

static int32_t run(void) {
    int64_t bytes = any_rank_workspace_for(n);
    CHECK(bytes >= 0 && bytes < (int64_t)sizeof workspace_memory - 64);
    return any_rank_run(in, 2, out, OUTPUTS, workspace, (size_t)bytes, &options);
}

static void runs(void) {
    int32_t status = run();
    if (status != ONNXC_OK) {
        fprintf(stderr, "n %d, whole %d: status %d, `%.299s`\n", (int)n, whole, (int)status, message);
        exit(1);
    }
}

static void results_are_right(void) {
    const int64_t *sums = (const int64_t *)out[1].data;
    int64_t wanted[3] = {0, 0, 0};
    int at;
    CHECK(out[0].rank == (n == 1 ? 2 : 3) && y_dims[0] == 2);
    CHECK(y_dims[1] == (n == 1 ? 3 : n) && y_dims[2] == (n == 1 ? 1 : 3));
    CHECK(n == 0 || memcmp(out[0].data, x, (size_t)(8 * 6 * n)) == 0);
    for (at = 0; at < 6 * n; at++) {
        wanted[at % 3] += x[at];
    }
    CHECK(out[1].rank == (whole ? 0 : 1) && z_dims[0] == (whole ? 1 : 3));
    if (whole) {
        CHECK(sums[0] == wanted[0] + wanted[1] + wanted[2]);
    } else {
        CHECK(memcmp(sums, wanted, sizeof wanted) == 0);
    }
}

static void the_description_says_so(void) {
    const onnxc_model *model = any_rank_model();
    onnxc_value_info first = onnxc_model_output(model, 0), second = onnxc_model_output(model, 1);
    onnxc_value_info input = onnxc_model_input(model, 0);
    CHECK(first.rank == 3 && onnxc_value_least_rank(&first) == 2 && first.dims[0] == 2);
    CHECK(second.rank == 1 && onnxc_value_least_rank(&second) == 0);
    CHECK(input.rank == 3 && onnxc_value_least_rank(&input) == 3);
    CHECK(onnxc_value_dim_kind(&first, 0) == ONNXC_DIM_STATIC && onnxc_value_dim_kind(&first, 2) == ONNXC_DIM_DATA);
    CHECK(onnxc_value_dim_text(&first, 2) != NULL && onnxc_value_dim_text(&second, 0) != NULL);
    CHECK(ANY_RANK_OUTPUT_Y_RANK == 3 && ANY_RANK_OUTPUT_Y_LEAST_RANK == 2 && ANY_RANK_OUTPUT_Z_LEAST_RANK == 0);
}

static void any_rank(void) {
    for (n = 0; n <= MOST; n++) {
        for (whole = 0; whole < 2; whole++) {
            reset();
            runs();
            results_are_right();
            CHECK(out[0].data == y && heap.live == 0);
            if (n == 0) {
                continue;
            }
            reset();
            without_data(out, OUTPUTS);
            runs();
            results_are_right();
            CHECK(out[1].bytes == (size_t)(whole ? 8 : 24) && out[0].bytes == (size_t)(48 * n));
            give_outputs(out, OUTPUTS);
            CHECK(heap.live == 0 && heap.bytes == 0);
        }
    }
}

static void refused(int32_t status, const char *text) {
    int32_t found = run();
    if (found != status || strstr(message, text) == NULL) {
        fprintf(stderr, "status %d, `%.299s`, must be %d and have `%s`\n", (int)found, message, (int)status, text);
        exit(1);
    }
    CHECK(heap.live == 0);
}

static void wrong_descriptors(void) {
    n = 1;
    whole = 0;
    reset();
    runs();
    /* The rank that the run left is not the one to call with. */
    refused(ONNXC_BAD_RANK, "output 0 `y`: rank 2, must be 3 (the run decides its rank, 2 or 3: dims need room for the highest)");
    out[0].rank = ANY_RANK_OUTPUT_Y_RANK;
    runs();
    results_are_right();
    reset();
    out[1].rank = 2;
    refused(ONNXC_BAD_RANK, "output 1 `z`: rank 2, must be 1");
    reset();
    y_dims[0] = 3;
    refused(ONNXC_BAD_DIM, "output 0 `y`: dimension 0 is 3, must be 2");
    /* Room for the least, and not for what this run needs. */
    reset();
    out[1].bytes = 8;
    refused(ONNXC_BAD_BYTES, "output 1 `z`: 8 bytes, needs 24");
    whole = 1;
    reset();
    out[1].bytes = 8;
    runs();
    results_are_right();
    reset();
    out[0].data = NULL;
    options.allocate = NULL;
    refused(ONNXC_NEEDS_ALLOCATOR, "output 0 `y`: data is null, it needs 48 bytes, and there is no allocator");
}

static void allocations_that_fail(void) {
    int calls;
    n = 3;
    whole = 0;
    reset();
    without_data(out, OUTPUTS);
    runs();
    calls = heap.calls;
    CHECK(calls >= OUTPUTS);
    give_outputs(out, OUTPUTS);
    reset();
    fail_each_allocation(calls, OUTPUTS, out, OUTPUTS, run, reset);
}

int main(void) {
    the_description_says_so();
    any_rank();
    wrong_descriptors();
    allocations_that_fail();
    puts("ok");
    return 0;
}
