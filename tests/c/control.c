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
static int64_t workspace_memory[4096];
static char *workspace;

static void reset(void) {
    static const int ranks[OUTPUTS] = {1, 2, 2, 1};
    int at;
    in[0] = onnxc_make_tensor(x, sizeof x, ONNXC_INT64, 1, x_dims);
    in[1] = onnxc_make_tensor(&limit, sizeof limit, ONNXC_INT64, 0, NULL);
    in[2] = onnxc_make_tensor(&flag, sizeof flag, ONNXC_BOOL, 0, NULL);
    for (at = 0; at < OUTPUTS; at++) {
        out[at] = onnxc_make_tensor(buffers[at], sizeof buffers[at], ONNXC_INT64, ranks[at], dims[at]);
    }
    memset(buffers, 0, sizeof buffers);
    dims[1][1] = 1;
    fresh_options();
    workspace = workspace_in(workspace_memory);
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

static void allocations_that_fail(void) {
    int calls;
    limit = 20;
    for (flag = 0; flag < 2; flag++) {
        without_data(out, OUTPUTS);
        runs();
        results_are(3);
        calls = heap.calls;
        CHECK(calls > 8 && heap.live == OUTPUTS);
        give_outputs(out, OUTPUTS);
        reset();
        fail_each_allocation(calls, OUTPUTS, out, OUTPUTS, run, reset);
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
