/* Sizes that the data decides: buffers of the caller and of its allocator, what fails, and that nothing leaks.
 *
 * The model: `chosen` are the positive elements of `x` summed up twice, at most all of `x`; `counted` is 0, 1,
 * .. `count` - 1 summed up twice; `cut` is the first `cut_at` elements of `x`, negated; `stepped` is a loop's state of
 * `count` elements. */
#include "check.h"
#include "heap.h"
#include "late.h"

enum { N = 6, MOST = 64, OUTPUTS = 4 };

static int64_t x[N], count[1], cut_at[1], chosen[MOST], counted[MOST], cut[MOST], stepped[MOST];
static int64_t x_dims[1], one[1], chosen_dims[1], counted_dims[1], cut_dims[1], stepped_dims[1];
static onnxc_tensor in[3], out[OUTPUTS];
static int64_t workspace_memory[1024];
static char *workspace;

static void reset(void) {
    static const int64_t values[N] = {3, -1, 4, 0, -5, 9};
    int at;
    memcpy(x, values, sizeof x);
    for (at = 0; at < MOST; at++) {
        chosen[at] = counted[at] = cut[at] = stepped[at] = -7;
    }
    x_dims[0] = N;
    one[0] = 1;
    count[0] = 4;
    cut_at[0] = 2;
    chosen_dims[0] = counted_dims[0] = cut_dims[0] = stepped_dims[0] = -1;
    in[0] = onnxc_make_tensor(x, sizeof x, ONNXC_INT64, 1, x_dims);
    in[1] = onnxc_make_tensor(count, sizeof count, ONNXC_INT64, 1, one);
    in[2] = onnxc_make_tensor(cut_at, sizeof cut_at, ONNXC_INT64, 1, one);
    out[0] = onnxc_make_tensor(chosen, sizeof chosen, ONNXC_INT64, 1, chosen_dims);
    out[1] = onnxc_make_tensor(counted, sizeof counted, ONNXC_INT64, 1, counted_dims);
    out[2] = onnxc_make_tensor(cut, sizeof cut, ONNXC_INT64, 1, cut_dims);
    out[3] = onnxc_make_tensor(stepped, sizeof stepped, ONNXC_INT64, 1, stepped_dims);
    fresh_options();
    workspace = workspace_in(workspace_memory);
}

static int32_t run(void) {
    int64_t bytes = late_workspace_for(x_dims[0]);
    CHECK(bytes > 0 && bytes < (int64_t)sizeof workspace_memory - 64);
    return late_run(in, 3, out, OUTPUTS, workspace, (size_t)bytes, &options);
}

/* The next call fails with `status` and a message that holds `text`; all memory is given back. */
static void refused(int line, int32_t status, const char *text) {
    int32_t found = run();
    if (found != status || strstr(message, text) == NULL || heap.live != 0 || heap.bytes != 0) {
        fprintf(stderr, "line %d: status %d, message `%.299s`, %d blocks live\n", line, (int)found, message, heap.live);
        exit(1);
    }
    reset();
}
#define REFUSED(status, text) refused(__LINE__, status, text)

static void outputs_are(const onnxc_tensor *tensors, int kept) {
    static const int64_t first[3] = {3, 10, 26}, second[4] = {0, 1, 4, 10}, third[2] = {-3, 1};
    static const int64_t fourth[4] = {0, 3, 9, 19};
    CHECK(chosen_dims[0] == 3 && memcmp(tensors[0].data, first, sizeof first) == 0);
    CHECK(counted_dims[0] == 4 && memcmp(tensors[1].data, second, sizeof second) == 0);
    CHECK(cut_dims[0] == 2 && memcmp(tensors[2].data, third, sizeof third) == 0);
    CHECK(stepped_dims[0] == 4 && memcmp(tensors[3].data, fourth, sizeof fourth) == 0);
    CHECK(heap.live == kept);
}

static void buffers_of_the_caller(void) {
    CHECK(run() == ONNXC_OK);
    outputs_are(out, 0);
    CHECK(chosen[3] == -7 && counted[4] == -7 && cut[2] == -7 && message[0] == 0);
    /* What is bounded is in the workspace. */
    CHECK(heap.calls > 0 && heap.calls <= 4);
    reset();
    out[1].bytes = 32;
    CHECK(run() == ONNXC_OK);
    outputs_are(out, 0);
    reset();
    out[1].bytes = 31;
    REFUSED(ONNXC_BAD_BYTES, "output 1 `counted`: 31 bytes, needs 32");
    out[0].bytes = 23;
    REFUSED(ONNXC_BAD_BYTES, "output 0 `chosen`: 23 bytes, needs 24");
}

static void buffers_of_the_allocator(void) {
    int at;
    for (at = 0; at < OUTPUTS; at++) {
        out[at].data = NULL;
        out[at].bytes = 0;
    }
    CHECK(run() == ONNXC_OK);
    outputs_are(out, OUTPUTS);
    CHECK(out[0].bytes == 24 && out[1].bytes == 32 && out[2].bytes == 16 && out[3].bytes == 32);
    for (at = 0; at < OUTPUTS; at++) {
        options.release(options.allocator, out[at].data, out[at].bytes, ONNXC_WORKSPACE_ALIGNMENT);
    }
    CHECK(heap.live == 0 && heap.bytes == 0);
    reset();
    /* No elements need no memory. */
    out[2].data = NULL;
    cut_at[0] = 0;
    CHECK(run() == ONNXC_OK && out[2].data == NULL && cut_dims[0] == 0 && heap.live == 0);
    reset();
    count[0] = 0;
    CHECK(run() == ONNXC_OK && counted_dims[0] == 0 && counted[0] == -7 && heap.live == 0);
    reset();
}

static void sizes_out_of_range(void) {
    count[0] = -1;
    REFUSED(ONNXC_BAD_SIZE, "`count` is -1; it must be 0 or more");
    cut_at[0] = N + 1;
    REFUSED(ONNXC_BAD_SIZE, "is 7; it must be between 0 and 6");
    count[0] = INT64_MAX / 2;
    REFUSED(ONNXC_SIZE_OVERFLOW, "exceeds 64 bits");
}

static void allocators_that_fail(void) {
    int calls;
    options.allocate = NULL;
    REFUSED(ONNXC_NEEDS_ALLOCATOR, "only data decides the size");
    options.release = NULL;
    REFUSED(ONNXC_NEEDS_ALLOCATOR, "only data decides the size");
    CHECK(late_run(in, 3, out, OUTPUTS, workspace, (size_t)late_workspace_for(N), NULL) == ONNXC_NEEDS_ALLOCATOR);
    without_data(out, OUTPUTS);
    CHECK(run() == ONNXC_OK);
    calls = heap.calls;
    give_outputs(out, OUTPUTS);
    reset();
    fail_each_allocation(calls, 1, out, OUTPUTS, run, reset);
}

int main(void) {
    onnxc_value_info info;
    reset();
    info = onnxc_model_output(late_model(), 0);
    CHECK(late_model()->symbol_count == 1 && info.dims[0] == -1 && info.symbols[0] == -1);
    CHECK(onnxc_value_dim_kind(&info, 0) == ONNXC_DIM_DATA);
    info = onnxc_model_input(late_model(), 0);
    CHECK(onnxc_value_dim_kind(&info, 0) == ONNXC_DIM_SYMBOL);
    info = onnxc_model_input(late_model(), 1);
    CHECK(onnxc_value_dim_kind(&info, 0) == ONNXC_DIM_STATIC);
    buffers_of_the_caller();
    buffers_of_the_allocator();
    sizes_out_of_range();
    allocators_that_fail();
    puts("ok");
    return 0;
}
