/* Times runs of a model of static shapes on one thread: prints the least time of a run in microseconds, and a sum of the
 * outputs' bytes. -DMODEL=net_model names the model; arguments are seconds to measure, of at least LEAST_RUNS runs: the first one
 * brings the weights into memory. On Linux and on Windows. */
#define _POSIX_C_SOURCE 200809L
#include <onnxc.h>

#include <stdio.h>
#include <stdlib.h>

#ifdef _WIN32
#include <windows.h>
static double now(void) {
    LARGE_INTEGER ticks, per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    return (double)ticks.QuadPart / (double)per_second.QuadPart;
}
#else
#include <time.h>
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}
#endif

#define LEAST_RUNS 5

const onnxc_model *MODEL(void);

static void *take(size_t bytes) {
    unsigned char *memory = malloc(bytes + 64);
    if (memory == NULL) {
        exit(2);
    }
    return memory + (64 - (uintptr_t)memory % 64);
}

static onnxc_tensor tensor(const onnxc_value_info *info) {
    onnxc_tensor tensor = { NULL, (size_t)info->element_bytes, info->dtype, info->rank, (int64_t *)info->dims };
    int32_t axis;
    for (axis = 0; axis < info->rank; axis++) {
        tensor.bytes *= (size_t)info->dims[axis];
    }
    tensor.data = take(tensor.bytes);
    return tensor;
}

/* Numbers from 0 on, below 1; integers are 1. */
static void fill(const onnxc_tensor *input) {
    uint32_t state = 1;
    size_t at;
    for (at = 0; at < input->bytes; at++) {
        ((unsigned char *)input->data)[at] = 0;
    }
    for (at = 0; input->dtype == ONNXC_FLOAT && at < input->bytes / 4; at++) {
        state = state * 1664525u + 1013904223u;
        ((float *)input->data)[at] = (float)(state >> 8) / 16777216.0f;
    }
    for (at = 0; input->dtype == ONNXC_FLOAT16 && at < input->bytes / 2; at++) {
        state = state * 1664525u + 1013904223u;
        ((uint16_t *)input->data)[at] = (uint16_t)(0x3000 + (state >> 21));
    }
    for (at = 0; input->dtype == ONNXC_INT64 && at < input->bytes / 8; at++) {
        ((int64_t *)input->data)[at] = 1;
    }
}

int main(int argc, char **argv) {
    const onnxc_model *model = MODEL();
    onnxc_run_fn run = onnxc_model_run(model);
    onnxc_tensor *inputs = take(sizeof(onnxc_tensor) * (size_t)model->input_count);
    onnxc_tensor *outputs = take(sizeof(onnxc_tensor) * (size_t)model->output_count);
    void *workspace = take((size_t)model->workspace_bytes);
    double seconds = argc > 1 ? atof(argv[1]) : 1, least = 1e9, end;
    unsigned long sum = 0;
    int32_t at, runs;
    for (at = 0; at < model->input_count; at++) {
        onnxc_value_info info = onnxc_model_input(model, at);
        inputs[at] = tensor(&info);
        fill(&inputs[at]);
    }
    for (at = 0; at < model->output_count; at++) {
        onnxc_value_info info = onnxc_model_output(model, at);
        outputs[at] = tensor(&info);
    }
    for (runs = 0, end = now() + seconds; runs < LEAST_RUNS || now() < end; runs++) {
        double start = now(), time;
        int32_t status = run(inputs, (size_t)model->input_count, outputs, (size_t)model->output_count, workspace,
                             (size_t)model->workspace_bytes, NULL);
        time = now() - start;
        least = time < least ? time : least;
        if (status != ONNXC_OK) {
            printf("status %d\n", (int)status);
            return 1;
        }
    }
    for (at = 0; at < model->output_count; at++) {
        size_t byte;
        for (byte = 0; byte < outputs[at].bytes; byte++) {
            sum = sum * 31 + ((unsigned char *)outputs[at].data)[byte];
        }
    }
    printf("%.1f %08lx\n", 1e6 * least, sum & 0xffffffff);
    return 0;
}
