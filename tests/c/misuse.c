/* Every way to call a model wrongly: its status, its message, and outputs untouched. */
#include "check.h"
#include "sum3.h"

enum { BATCH = 3, COUNT = 4 * BATCH };

/* Everything of one call, reset before each. */
static int32_t x[COUNT], y[COUNT], b[4], z[COUNT + 4];
static int64_t x_dims[2], y_dims[2], b_dims[1], z_dims[2];
static onnxc_tensor in[3], out[1];
static onnxc_options options;
static char message[200];
static int64_t workspace_memory[512];
static char *workspace;
static size_t workspace_bytes, inputs, outputs;
static int32_t cancel;

static void reset(void) {
    int at;
    for (at = 0; at < COUNT; at++) {
        x[at] = at;
        y[at] = 10 * at;
    }
    for (at = 0; at < COUNT + 4; at++) {
        z[at] = -7;
    }
    for (at = 0; at < 4; at++) {
        b[at] = at + 1;
    }
    x_dims[0] = y_dims[0] = BATCH;
    z_dims[0] = -1;
    x_dims[1] = y_dims[1] = z_dims[1] = b_dims[0] = 4;
    in[0] = onnxc_make_tensor(x, sizeof x, ONNXC_INT32, 2, x_dims);
    in[1] = onnxc_make_tensor(y, sizeof y, ONNXC_INT32, 2, y_dims);
    in[2] = onnxc_make_tensor(b, sizeof b, ONNXC_INT32, 1, b_dims);
    out[0] = onnxc_make_tensor(z, 4 * COUNT, ONNXC_INT32, 2, z_dims);
    inputs = 3;
    outputs = 1;
    cancel = 0;
    memset(message, 'm', sizeof message);
    {
        onnxc_options init = ONNXC_OPTIONS_INIT;
        options = init;
    }
    options.message = message;
    options.message_capacity = sizeof message;
    options.cancel = &cancel;
    workspace = (char *)workspace_memory;
    workspace += (64 - (uintptr_t)workspace % 64) % 64;
    workspace_bytes = (size_t)sum3_workspace_for(BATCH);
}

static int32_t run(void) {
    return sum3_run(in, inputs, out, outputs, workspace, workspace_bytes, &options);
}

/* The next call fails with `status` and a message that holds `text`; nothing is written. */
static void refused(int line, int32_t status, const char *text) {
    int32_t found = run();
    int at;
    if (found != status || strstr(message, text) == NULL) {
        fprintf(stderr, "line %d: status %d, message `%.199s`\n", line, (int)found, message);
        exit(1);
    }
    for (at = 0; at < COUNT + 4; at++) {
        CHECK(z[at] == -7);
    }
    CHECK(z_dims[0] == -1);
    reset();
}
#define REFUSED(status, text) refused(__LINE__, status, text)

static void accepted(void) {
    int at;
    CHECK(run() == ONNXC_OK);
    CHECK(message[0] == 'm');
    CHECK(z_dims[0] == BATCH);
    for (at = 0; at < COUNT; at++) {
        CHECK(z[at] == 11 * at + b[at % 4]);
    }
    for (; at < COUNT + 4; at++) {
        CHECK(z[at] == -7);
    }
    reset();
}

static void counts_and_pointers(void) {
    inputs = 2;
    REFUSED(ONNXC_BAD_COUNT, "2 inputs given, the model has 3");
    outputs = 0;
    REFUSED(ONNXC_BAD_COUNT, "0 outputs given, the model has 1");
    CHECK(sum3_run(NULL, 3, out, 1, workspace, workspace_bytes, &options) == ONNXC_NULL_POINTER);
    CHECK(strcmp(message, "the array of inputs is null") == 0);
    CHECK(sum3_run(in, 3, NULL, 1, workspace, workspace_bytes, NULL) == ONNXC_NULL_POINTER);
    reset();
    in[1].data = NULL;
    REFUSED(ONNXC_NULL_POINTER, "input 1 `y`: data is null");
    in[1].dims = NULL;
    REFUSED(ONNXC_NULL_POINTER, "input 1 `y`: dims is null");
    out[0].data = NULL;
    REFUSED(ONNXC_NULL_POINTER, "output 0 `z`: data is null");
    out[0].dims = NULL;
    REFUSED(ONNXC_NULL_POINTER, "output 0 `z`: dims is null");
}

static void types_and_dims(void) {
    in[0].dtype = ONNXC_FLOAT;
    REFUSED(ONNXC_BAD_DTYPE, "input 0 `x`: element type 1, must be 6 (i32)");
    out[0].dtype = ONNXC_INT64;
    REFUSED(ONNXC_BAD_DTYPE, "output 0 `z`: element type 7, must be 6 (i32)");
    in[0].rank = 1;
    REFUSED(ONNXC_BAD_RANK, "input 0 `x`: rank 1, must be 2");
    in[2].rank = -3;
    REFUSED(ONNXC_BAD_RANK, "input 2 `b`: rank -3, must be 1");
    out[0].rank = 3;
    REFUSED(ONNXC_BAD_RANK, "output 0 `z`: rank 3, must be 2");
    x_dims[1] = 5;
    REFUSED(ONNXC_BAD_DIM, "input 0 `x`: dimension 1 is 5, must be 4");
    b_dims[0] = 3;
    REFUSED(ONNXC_BAD_DIM, "input 2 `b`: dimension 0 is 3, must be 4");
    x_dims[0] = -1;
    REFUSED(ONNXC_BAD_DIM, "input 0 `x`: dimension 0 is -1, which is negative");
    y_dims[0] = 2;
    REFUSED(ONNXC_BAD_DIM, "input 1 `y`: dimension 0 is 2, must be 3 (`batch`, as in dimension 0 of input 0 `x`)");
    z_dims[1] = 3;
    REFUSED(ONNXC_BAD_DIM, "output 0 `z`: dimension 1 is 3, must be 4");
    x_dims[0] = y_dims[0] = INT64_MAX / 4;
    REFUSED(ONNXC_SIZE_OVERFLOW, "input 0 `x`: the number of bytes exceeds 64 bits");
    x_dims[0] = y_dims[0] = INT64_MAX;
    REFUSED(ONNXC_SIZE_OVERFLOW, "exceeds 64 bits");
    x_dims[0] = INT64_MIN;
    REFUSED(ONNXC_BAD_DIM, "-9223372036854775808");
}

static void bytes_and_alignment(void) {
    in[0].bytes -= 4;
    REFUSED(ONNXC_BAD_BYTES, "input 0 `x`: 44 bytes, must be 48");
    in[0].bytes += 4;
    REFUSED(ONNXC_BAD_BYTES, "input 0 `x`: 52 bytes, must be 48");
    in[2].bytes = 0;
    REFUSED(ONNXC_BAD_BYTES, "input 2 `b`: 0 bytes, must be 16");
    out[0].bytes -= 1;
    REFUSED(ONNXC_BAD_BYTES, "output 0 `z`: 47 bytes, needs 48");
    in[1].data = (char *)y + 2;
    REFUSED(ONNXC_MISALIGNED, "input 1 `y`: data is not aligned to 4 bytes");
    out[0].data = (char *)z + 1;
    REFUSED(ONNXC_MISALIGNED, "output 0 `z`: data is not aligned to 4 bytes");
    workspace_bytes -= 1;
    REFUSED(ONNXC_BAD_WORKSPACE, "workspace: ");
    workspace += 32;
    REFUSED(ONNXC_MISALIGNED, "workspace is not aligned to 64 bytes");
    workspace = NULL;
    REFUSED(ONNXC_NULL_POINTER, "workspace is null");
    options.struct_size = 8;
    CHECK(run() == ONNXC_BAD_OPTIONS && message[0] == 'm');
    reset();
    /* The struct of the first version, which ended before the seed. */
    options.struct_size = offsetof(onnxc_options, seed);
    CHECK(run() == ONNXC_OK);
    options.struct_size += 1;
    CHECK(run() == ONNXC_BAD_OPTIONS);
    reset();
}

static void messages(void) {
    /* Cut and terminated. */
    options.message_capacity = 8;
    inputs = 2;
    CHECK(run() == ONNXC_BAD_COUNT && memcmp(message, "2 input\0m", 9) == 0);
    options.message_capacity = 1;
    CHECK(run() == ONNXC_BAD_COUNT && message[0] == 0);
    reset();
    options.message_capacity = 0;
    inputs = 2;
    CHECK(run() == ONNXC_BAD_COUNT && message[0] == 'm');
    options.message = NULL;
    options.message_capacity = 100;
    CHECK(run() == ONNXC_BAD_COUNT);
    reset();
}

static int32_t cancel_after_first(void *pool, int64_t begin, int64_t end, onnxc_range_fn body, void *job) {
    int32_t result = body(job, begin, end);
    *(int32_t *)pool = 1;
    return result;
}

static void at_run_time(void) {
    cancel = 1;
    CHECK(run() == ONNXC_CANCELLED && strcmp(message, "cancelled by the caller") == 0 && z[0] == -7);
    cancel = 0;
    options.parallel_for = cancel_after_first;
    options.pool = &cancel;
    CHECK(run() == ONNXC_CANCELLED && z[0] == -7);
    reset();
    x[5] = -1000;
    CHECK(run() == ONNXC_OUT_OF_RANGE);
    CHECK(strstr(message, "node `plus b` (Add)") != NULL && strstr(message, "out of range") != NULL);
    reset();
}

static void defaults_and_sizes(void) {
    onnxc_value_info info;
    int64_t symbols[1];
    in[2] = onnxc_make_tensor(NULL, 0, 0, 0, NULL);
    CHECK(run() == ONNXC_OK && z[0] == 100 && z[7] == 7 + 70 + 400);
    reset();
    /* No elements: data may be null. */
    x_dims[0] = y_dims[0] = 0;
    in[0].bytes = in[1].bytes = 0;
    in[0].data = in[1].data = out[0].data = NULL;
    CHECK(run() == ONNXC_OK && z_dims[0] == 0);
    reset();
    CHECK(sum3_run(in, 3, out, 1, workspace, workspace_bytes, NULL) == ONNXC_OK);
    reset();
    out[0].bytes = sizeof z;
    accepted();

    CHECK(sum3_workspace(NULL, 1) == -ONNXC_NULL_POINTER);
    CHECK(sum3_workspace(x_dims, 2) == -ONNXC_BAD_COUNT);
    CHECK(sum3_workspace_for(-1) == -ONNXC_BAD_DIM);
    CHECK(sum3_workspace_for(INT64_MAX / 8) == -ONNXC_SIZE_OVERFLOW);
    CHECK(sum3_workspace_for(100) - sum3_workspace_for(0) == 1600);
    CHECK(onnxc_model_workspace_for(sum3_model(), in, 3, symbols) == (int64_t)workspace_bytes);
    CHECK(symbols[0] == BATCH);
    CHECK(sum3_model()->workspace_bytes == -1);
    CHECK(strcmp(onnxc_model_symbol(sum3_model(), 0), "batch") == 0);
    info = onnxc_model_input(sum3_model(), 0);
    CHECK(info.dims[0] == -1 && info.symbols[0] == 0 && info.symbols[1] == -1);
    CHECK(strcmp(onnxc_value_dim_text(&info, 0), "batch") == 0);
    CHECK(onnxc_model_input(sum3_model(), 2).has_default);
}

int main(void) {
    reset();
    accepted();
    counts_and_pointers();
    types_and_dims();
    bytes_and_alignment();
    messages();
    at_run_time();
    defaults_and_sizes();
    accepted();
    puts("ok");
    return 0;
}
