/* A loop over time, for even, odd and no iterations. */
#include "check.h"
#include "running.h"

static void run(int64_t steps) {
    int32_t initial[2] = {1000, 2000}, xs[20], last[2] = {0}, all[20], sums[2];
    int64_t initial_dims[1] = {2}, xs_dims[2], last_dims[1] = {2}, all_dims[2];
    static char memory[4096];
    char *workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
    onnxc_tensor in[2], out[2];
    int64_t at, bytes = running_workspace_for(steps);
    CHECK(bytes > 0 && bytes < 4000);
    for (at = 0; at < 2 * steps; at++) {
        xs[at] = (int32_t)(at * at + 1);
    }
    xs_dims[0] = steps;
    xs_dims[1] = all_dims[1] = 2;
    in[0] = onnxc_make_tensor(initial, sizeof initial, ONNXC_INT32, 1, initial_dims);
    in[1] = onnxc_make_tensor(xs, (size_t)steps * 8, ONNXC_INT32, 2, xs_dims);
    out[0] = onnxc_make_tensor(last, sizeof last, ONNXC_INT32, 1, last_dims);
    out[1] = onnxc_make_tensor(all, sizeof all, ONNXC_INT32, 2, all_dims);
    CHECK(running_run(in, 2, out, 2, workspace, (size_t)bytes, NULL) == ONNXC_OK);
    CHECK(all_dims[0] == steps && initial[0] == 1000 && initial[1] == 2000);
    sums[0] = 1000;
    sums[1] = 2000;
    for (at = 0; at < steps; at++) {
        sums[0] += xs[2 * at];
        sums[1] += xs[2 * at + 1];
        CHECK(all[2 * (steps - 1 - at)] == 2 * sums[0]);
        CHECK(all[2 * (steps - 1 - at) + 1] == 2 * sums[1]);
    }
    CHECK(last[0] == sums[0] && last[1] == sums[1]);
}

int main(void) {
    int64_t steps;
    for (steps = 0; steps <= 10; steps++) {
        run(steps);
    }
    puts("ok");
    return 0;
}
