/* Times a model of one input `[n, features]` of f32 as a service calls it: rows that no two calls share.
 *
 *     onnxc MODEL.onnx --mcpu native -o model.o
 *     cc -O2 -I. -DPREFIX=model tests/benchmarks/rows.c model.o -o rows
 *     ./rows ROWS.f32 FEATURES BATCH SECONDS
 *
 * ROWS.f32 holds rows of floats, FEATURES each. Calls of BATCH rows follow each other; of each group of calls the least time counts, over
 * all passes through the rows, and the sum of these is divided by the rows. Prints microseconds a row and a sum of the last output. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "onnxc.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
const onnxc_model *JOIN(PREFIX, _model)(void);
int32_t JOIN(PREFIX, _run)(const onnxc_tensor *, size_t, onnxc_tensor *, size_t, void *, size_t, const onnxc_options *);

enum { OUTPUTS = 4, RANK = 2, GROUP_ROWS = 100 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **args) {
    if (count != 5) {
        fprintf(stderr, "usage: rows ROWS.f32 FEATURES BATCH SECONDS\n");
        return 2;
    }
    FILE *file = fopen(args[1], "rb");
    const int64_t features = atol(args[2]), batch = atol(args[3]);
    const double seconds = atof(args[4]);
    if (!file || features < 1 || batch < 1 || fseek(file, 0, SEEK_END)) {
        fprintf(stderr, "cannot read %s\n", args[1]);
        return 2;
    }
    const int64_t rows = ftell(file) / (features * (int64_t)sizeof(float));
    float *x = malloc((size_t)(rows * features) * sizeof(float));
    rewind(file);
    if (!x || rows < batch || fread(x, sizeof(float), (size_t)(rows * features), file) != (size_t)(rows * features)) {
        fprintf(stderr, "%s has %" PRId64 " rows\n", args[1], rows);
        return 2;
    }
    fclose(file);

    const onnxc_model *model = JOIN(PREFIX, _model)();
    int64_t in_dims[RANK] = {batch, features}, out_dims[OUTPUTS][RANK], symbols[8];
    onnxc_tensor in = {x, (size_t)(batch * features) * sizeof(float), ONNXC_FLOAT, RANK, in_dims};
    onnxc_tensor out[OUTPUTS];
    for (int32_t at = 0; at < model->output_count; at++) {
        const onnxc_value_info info = onnxc_model_output(model, at);
        const size_t bytes = (size_t)batch * 64 * sizeof(double);
        for (int32_t axis = 0; axis < info.rank; axis++) out_dims[at][axis] = info.dims[axis];
        out[at] = (onnxc_tensor){malloc(bytes), bytes, info.dtype, info.rank, out_dims[at]};
    }
    const int64_t room = onnxc_model_workspace_for(model, &in, 1, symbols);
    void *workspace = aligned_alloc(64, (size_t)((room + 64) / 64 * 64));
    if (room < 0 || !workspace) {
        fprintf(stderr, "no workspace: %" PRId64 "\n", room);
        return 1;
    }

    const int64_t calls = rows / batch, group = batch < GROUP_ROWS ? GROUP_ROWS / batch : 1, groups = calls / group;
    double *least = malloc((size_t)groups * sizeof(double)), total = 0, sum = 0;
    int64_t passes = 0;
    for (const double end = now() + seconds; passes < 2 || now() < end; passes++) {
        for (int64_t at = 0; at < groups; at++) {
            const double start = now();
            for (int64_t call = at * group; call < (at + 1) * group; call++) {
                in.data = x + call * batch * features;
                const int32_t status = JOIN(PREFIX, _run)(&in, 1, out, (size_t)model->output_count, workspace,
                                                          (size_t)room, NULL);
                if (status) {
                    fprintf(stderr, "status %" PRId32 "\n", status);
                    return 1;
                }
            }
            const double took = now() - start;
            if (!passes || took < least[at]) least[at] = took;
        }
    }
    for (int64_t at = 0; at < groups; at++) total += least[at];
    const onnxc_tensor *last = &out[model->output_count - 1];
    for (int64_t at = 0; at < batch; at++) sum += ((const float *)last->data)[at];
    printf("%.4f us a row, batch %" PRId64 ", %" PRId64 " passes, sum %g\n", 1e6 * total / (double)(groups * group * batch),
           batch, passes, sum);
    return 0;
}
