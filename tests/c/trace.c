/* Traced runs of three models: one with bodies, one that ends with copies. `trace MODEL print` prints the events of a run; `short` has structs
 * that end before the trace; `cancel` ends a run from its trace; `late` cancels it between its copies, where it does not end any more;
 * `file FILE` records runs on two threads by the runtime. */
#include <onnxc.h>

#include <stdio.h>
#include <stdlib.h>

extern const onnxc_model *digits_model(void);
extern const onnxc_model *nested_model(void);
extern const onnxc_model *copies_model(void);

enum { MOST = 8, BYTES = 4096 };

static int32_t cancel;
static int steps, ends_at = -1, late;

static int fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void print(void *context, int32_t event, int64_t number, const char *kernel, const char *nodes) {
    if (context != &steps) {
        fail("another context");
    }
    printf("%d %d %s|%s\n", (int)event, (int)number, kernel, nodes);
    if ((event == ONNXC_STEP || event == ONNXC_ENTER) && (++steps == ends_at || (late && strcmp(kernel, "copy") == 0))) {
        cancel = 1;
    }
}

static void never(void *context, int32_t event, int64_t number, const char *kernel, const char *nodes) {
    (void)context, (void)event, (void)number, (void)kernel, (void)nodes;
    fail("a trace behind the end of the struct is called");
}

static void count(void *context, int32_t event, int64_t number, const char *kernel, const char *nodes) {
    (void)context, (void)event, (void)number, (void)kernel, (void)nodes;
    steps++;
}

static union {
    double aligned;
    char bytes[BYTES];
} memory[2 * MOST];

/* Runs a model on inputs with all bytes 1; gives the status. The outputs are left in `memory`. */
static int32_t run(const onnxc_model *model, const onnxc_options *options) {
    onnxc_tensor tensors[2 * MOST];
    int64_t dims[2 * MOST][8];
    int32_t at, axis, status;
    char *workspace = malloc((size_t)model->workspace_bytes + 64);
    void *aligned = (void *)(((uintptr_t)workspace + 63) / 64 * 64);
    if (model->input_count > MOST || model->output_count > MOST || model->workspace_bytes < 0 || workspace == NULL) {
        fail("the model is too large");
    }
    for (at = 0; at < model->input_count + model->output_count; at++) {
        const int is_input = at < model->input_count;
        const onnxc_value_info info =
            is_input ? onnxc_model_input(model, at) : onnxc_model_output(model, at - model->input_count);
        size_t bytes = (size_t)info.element_bytes;
        for (axis = 0; axis < info.rank; axis++) {
            dims[at][axis] = info.dims[axis];
            bytes *= (size_t)info.dims[axis];
        }
        if (bytes > BYTES) {
            fail("a tensor is too large");
        }
        memset(memory[at].bytes, is_input ? 1 : 0xaa, bytes);
        tensors[at] = onnxc_make_tensor(memory[at].bytes, bytes, info.dtype, info.rank, dims[at]);
    }
    status = onnxc_model_run(model)(tensors, (size_t)model->input_count, tensors + model->input_count,
                                    (size_t)model->output_count, aligned, (size_t)model->workspace_bytes, options);
    free(workspace);
    return status;
}

int main(int argc, char **argv) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    static char plain[sizeof memory], message[64];
    const onnxc_model *model;
    if (argc < 3) {
        return fail("trace MODEL MODE");
    }
    model = strcmp(argv[1], "nested") == 0 ? nested_model() : strcmp(argv[1], "copies") == 0 ? copies_model() : digits_model();
    if (run(model, NULL) != ONNXC_OK) {
        return fail("a run without options fails");
    }
    memcpy(plain, memory, sizeof memory);
    options.message = message;
    options.message_capacity = sizeof message;
    options.cancel = &cancel;
    options.trace = print;
    options.trace_context = &steps;
    if (strcmp(argv[2], "print") == 0) {
        if (run(model, &options) != ONNXC_OK || message[0] != 0) {
            return fail("a traced run fails");
        }
        return memcmp(plain, memory, sizeof memory) == 0 ? 0 : fail("a traced run gives something else");
    }
    if (strcmp(argv[2], "short") == 0) {
        static const size_t sizes[] = { offsetof(onnxc_options, seed), offsetof(onnxc_options, communicator),
                                        offsetof(onnxc_options, trace) };
        size_t at;
        options.trace = never;
        for (at = 0; at < sizeof sizes / sizeof *sizes; at++) {
            options.struct_size = sizes[at];
            if (run(model, &options) != ONNXC_OK) {
                return fail("an earlier struct is refused");
            }
            options.struct_size = sizes[at] + 1;
            if (run(model, &options) != ONNXC_BAD_OPTIONS) {
                return fail("a struct of no version is taken");
            }
        }
        options.struct_size = offsetof(onnxc_options, weights);
        options.trace = count;
        if (run(model, &options) != ONNXC_OK || steps == 0) {
            return fail("a struct that ends behind the trace is not traced");
        }
        steps = 0;
        options.struct_size = offsetof(onnxc_options, function);
        if (run(model, &options) != ONNXC_OK || steps == 0) {
            return fail("a struct that ends behind the weights is refused, or not traced");
        }
        options.struct_size += 1;
        if (run(model, &options) != ONNXC_BAD_OPTIONS) {
            return fail("a struct of no version is taken");
        }
        return 0;
    }
    if (strcmp(argv[2], "cancel") == 0) {
        cancel = 1;
        if (run(model, &options) != ONNXC_CANCELLED || strcmp(message, "cancelled by the caller") != 0) {
            return fail("a cancelled run begins");
        }
        cancel = 0;
        ends_at = 2;
        message[0] = 0;
        if (run(model, &options) != ONNXC_CANCELLED || strcmp(message, "cancelled by the caller") != 0) {
            return fail("a run is not cancelled");
        }
        return 0;
    }
    if (strcmp(argv[2], "late") == 0) {
        late = 1;
        if (run(model, &options) != ONNXC_OK || message[0] != 0 || cancel != 1) {
            return fail("a run ends between its copies");
        }
        return memcmp(plain, memory, sizeof memory) == 0 ? 0 : fail("a copy is missing");
    }
    if (strcmp(argv[2], "file") == 0 && argc == 4) {
        onnxc_trace *trace = onnxc_trace_create(0);
        onnxc_pool *pool = onnxc_pool_create(2);
        int runs;
        if (trace == NULL || pool == NULL) {
            return fail("no trace");
        }
        options.parallel_for = onnxc_pool_parallel_for;
        options.pool = pool;
        if (onnxc_trace_attach(trace, &options) != ONNXC_OK) {
            return fail("the trace is refused");
        }
        for (runs = 0; runs < 3; runs++) {
            if (run(model, &options) != ONNXC_OK || memcmp(plain, memory, sizeof memory) != 0) {
                return fail("a recorded run fails");
            }
        }
        if (onnxc_trace_lost(trace) != 0 || onnxc_trace_events(trace) < 9 || onnxc_trace_write(trace, argv[3]) != 0) {
            return fail("the trace is not written");
        }
        onnxc_pool_destroy(pool);
        onnxc_trace_destroy(trace);
        return 0;
    }
    return fail("no such mode");
}
