/* Limits of services: a cap, a watchdog, sizes before the workspace, buffers that lie apart. Models: sum3 of c_abi.rs. */
#include "check.h"
#include "sum3.h"

enum { BATCH = 3, COUNT = 4 * BATCH };

static int32_t x[COUNT], y[COUNT], b[4], z[COUNT];
static int64_t x_dims[2] = {BATCH, 4}, y_dims[2] = {BATCH, 4}, b_dims[1] = {4}, z_dims[2] = {-1, 4};
static onnxc_tensor in[3], out[1];
static char message[300];

static void reset(void) {
    x_dims[0] = BATCH;
    x_dims[1] = 4;
    in[0] = onnxc_make_tensor(x, sizeof x, ONNXC_INT32, 2, x_dims);
    in[1] = onnxc_make_tensor(y, sizeof y, ONNXC_INT32, 2, y_dims);
    in[2] = onnxc_make_tensor(b, sizeof b, ONNXC_INT32, 1, b_dims);
    out[0] = onnxc_make_tensor(z, sizeof z, ONNXC_INT32, 2, z_dims);
    memset(message, 'm', sizeof message);
}

static void found(int line, int32_t status, int32_t wanted, const char *text) {
    if (status != wanted || (wanted != ONNXC_OK && strstr(message, text) == NULL)) {
        fprintf(stderr, "line %d: status %d, message `%.199s`\n", line, (int)status, message);
        exit(1);
    }
    reset();
}
#define FOUND(call, status, text) found(__LINE__, call, status, text)

static int32_t check(const onnxc_limits *limits) {
    return onnxc_limits_check(limits, sum3_model(), in, 3, message, sizeof message);
}

static void sizes(void) {
    onnxc_limits none = ONNXC_LIMITS_INIT, limits = ONNXC_LIMITS_INIT;
    onnxc_symbol_limit batch = {"batch", 2};
    FOUND(check(&none), ONNXC_OK, "");
    limits.dim = 4;
    FOUND(check(&limits), ONNXC_OK, "");
    limits.dim = 3;
    FOUND(check(&limits), ONNXC_BAD_DIM, "input 0 `x`: dimension 1 is 4, at most 3 are allowed");
    limits = none;
    limits.elements = 11;
    FOUND(check(&limits), ONNXC_BAD_DIM, "input 0 `x`: 12 elements, at most 11 are allowed");
    limits = none;
    limits.bytes = 96;
    FOUND(check(&limits), ONNXC_BAD_DIM, "input 2 `b`: the inputs up to it have 112 bytes, at most 96 are allowed");
    limits = none;
    limits.symbols = &batch;
    limits.symbol_count = 1;
    FOUND(check(&limits), ONNXC_BAD_DIM, "input 0 `x`: dimension 0 (`batch`) is 3, at most 2 are allowed");
    limits = none;
    limits.workspace = 1;
    FOUND(check(&limits), ONNXC_BAD_WORKSPACE, "the workspace would have");
    /* Products that no number holds, and dims that no run takes. */
    limits = none;
    limits.elements = 1000;
    x_dims[0] = x_dims[1] = INT64_MAX;
    FOUND(check(&limits), ONNXC_BAD_DIM, "elements, at most 1000 are allowed");
    x_dims[0] = INT64_MAX;
    FOUND(check(&none), ONNXC_SIZE_OVERFLOW, "there is no run of these sizes");
    x_dims[0] = -1;
    FOUND(check(&none), ONNXC_BAD_DIM, "input 0 `x`: dimension 0 is -1, which is negative");
    in[1].rank = 3;
    FOUND(check(&none), ONNXC_BAD_RANK, "input 1 `y`: rank 3, must be 2");
    in[1].dims = NULL;
    FOUND(check(&none), ONNXC_NULL_POINTER, "input 1 `y`: dims is null");
    limits.struct_size = 8;
    FOUND(check(&limits), ONNXC_BAD_OPTIONS, "limits of another version");
    FOUND(onnxc_limits_check(&none, sum3_model(), in, 2, message, sizeof message), ONNXC_BAD_COUNT, "2 inputs given");
    FOUND(check(NULL), ONNXC_NULL_POINTER, "null");
    /* An input with a default may be left out; a message may be cut, or not be wanted. */
    in[2] = onnxc_make_tensor(NULL, 0, ONNXC_INT32, 0, NULL);
    FOUND(check(&none), ONNXC_OK, "");
    in[1].rank = 3;
    CHECK(onnxc_limits_check(&none, sum3_model(), in, 3, NULL, 0) == ONNXC_BAD_RANK);
    CHECK(onnxc_limits_check(&none, sum3_model(), in, 3, message, 6) == ONNXC_BAD_RANK);
    CHECK(strcmp(message, "input") == 0 && message[6] == 'm');
    reset();
}

static char memory[4096];

static int32_t apart(const void *workspace, size_t bytes) {
    return onnxc_check_overlap(sum3_model(), in, 3, out, 1, workspace, bytes, message, sizeof message);
}

static void buffers(void) {
    FOUND(apart(memory, sizeof memory), ONNXC_OK, "");
    in[1].data = in[0].data;
    FOUND(apart(memory, sizeof memory), ONNXC_OK, "");
    out[0].data = &x[COUNT - 1];
    out[0].bytes = 4;
    FOUND(apart(memory, sizeof memory), ONNXC_OVERLAP, "input 0 `x` (48 bytes at ");
    out[0].data = &x[COUNT - 1];
    out[0].bytes = 4;
    FOUND(apart(memory, sizeof memory), ONNXC_OVERLAP, " and output 0 `z` (4 bytes at ");
    in[2].data = memory + sizeof memory - 16;
    FOUND(apart(memory, sizeof memory), ONNXC_OVERLAP, "the workspace (4096 bytes at ");
    in[2].data = memory + sizeof memory - 16;
    FOUND(apart(memory, sizeof memory - 16), ONNXC_OK, "");
    out[0].data = memory + 64;
    FOUND(apart(memory, 65), ONNXC_OVERLAP, "output 0 `z`");
    out[0].data = NULL;
    FOUND(apart(NULL, 0), ONNXC_OK, "");
    CHECK(onnxc_check_overlap(NULL, in, 3, out, 1, NULL, 0, NULL, 0) == ONNXC_NULL_POINTER);
    CHECK(onnxc_check_overlap(sum3_model(), NULL, 3, out, 1, NULL, 0, NULL, 0) == ONNXC_NULL_POINTER);
}

static void caps(void) {
    onnxc_cap *whole = onnxc_cap_create(NULL, 1000), *part = onnxc_cap_create(whole, 600);
    void *first = onnxc_cap_allocate(part, 600, 64), *second;
    CHECK(first != NULL && (uintptr_t)first % 64 == 0);
    CHECK(onnxc_cap_allocate(part, 1, 64) == NULL);
    CHECK(onnxc_cap_allocate(whole, 401, 64) == NULL);
    second = onnxc_cap_allocate(whole, 400, 64);
    CHECK(second != NULL && onnxc_cap_used(whole) == 1000 && onnxc_cap_used(part) == 600);
    onnxc_cap_release(part, first, 600, 64);
    onnxc_cap_release(whole, second, 400, 64);
    onnxc_cap_release(whole, NULL, 400, 64);
    CHECK(onnxc_cap_used(whole) == 0 && onnxc_cap_used(part) == 0 && onnxc_cap_peak(whole) == 1000);
    CHECK(onnxc_cap_allocate(NULL, 1, 64) == NULL && onnxc_cap_used(NULL) == 0);
    onnxc_cap_destroy(part);
    onnxc_cap_destroy(whole);
    onnxc_cap_destroy(NULL);
}

static void deadlines(void) {
    onnxc_watchdog *watchdog = onnxc_watchdog_create();
    volatile int32_t soon = 0, late = 0;
    int64_t first = onnxc_watchdog_start(watchdog, &late, 3600 * 1000);
    int64_t second = onnxc_watchdog_start(watchdog, &soon, 1);
    onnxc_options options = ONNXC_OPTIONS_INIT;
    size_t bytes = (size_t)sum3_workspace_for(BATCH);
    char *workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
    CHECK(first > 0 && second > 0 && first != second && bytes < 2048);
    while (soon == 0) {
    }
    options.cancel = &soon;
    CHECK(sum3_run(in, 3, out, 1, workspace, bytes, &options) == ONNXC_CANCELLED);
    CHECK(onnxc_watchdog_stop(watchdog, second) == 1);
    CHECK(onnxc_watchdog_stop(watchdog, first) == 0 && late == 0);
    CHECK(onnxc_watchdog_stop(watchdog, first) == 0 && onnxc_watchdog_stop(watchdog, 0) == 0);
    options.cancel = &late;
    CHECK(sum3_run(in, 3, out, 1, workspace, bytes, &options) == ONNXC_OK);
    CHECK(onnxc_watchdog_start(watchdog, NULL, 1) == 0 && onnxc_watchdog_start(NULL, &late, 1) == 0);
    CHECK(onnxc_watchdog_start(watchdog, &late, -1) == 0);
    onnxc_watchdog_destroy(watchdog);
    onnxc_watchdog_destroy(NULL);
}

int main(void) {
    reset();
    sizes();
    buffers();
    caps();
    deadlines();
    puts("ok");
    return 0;
}
