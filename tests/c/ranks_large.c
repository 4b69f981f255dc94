/* Runs one rank of a decoder over MPI: ranks_large FOLDER COUNT TOKEN ... loads FOLDER/rankR.so, runs it on these tokens and then on COUNT
 * more, each the most probable one. Rank 0 prints the tokens; every rank prints the most memory that it had, and what it sent. */
#include <dlfcn.h>
#include <inttypes.h>

#include "check.h"
#include "onnxc_mpi.h"

enum { CONTEXT = 128, TIMEOUT_MILLISECONDS = 600000 };

static void *reserve(int64_t bytes) {
    void *memory = bytes < 0 ? NULL : onnxc_allocate(NULL, (size_t)bytes + 1, ONNXC_WORKSPACE_ALIGNMENT);
    CHECK(memory != NULL);
    return memory;
}

/* Lines of /proc/self/status about memory. */
static void print_memory(int rank) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "VmPeak", 6) == 0 || strncmp(line, "VmHWM", 5) == 0) {
            fprintf(stderr, "rank %d: %s", rank, line);
        }
    }
    fclose(file);
}

int main(int argc, char **argv) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    char path[4096], message[256] = "";
    const onnxc_model *model;
    onnxc_model_fn model_of;
    int64_t tokens[CONTEXT], count = 0, done = 0, wanted, at, *symbols, state_bytes, vocabulary;
    void *library, *state;
    int rank, axis;
    onnxc_mpi *mpi;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    CHECK(argc > 3);
    wanted = strtoll(argv[2], NULL, 10);
    for (at = 3; at < argc; at++) {
        tokens[count++] = strtoll(argv[at], NULL, 10);
    }
    CHECK(count + wanted <= CONTEXT);
    snprintf(path, sizeof path, "%s/rank%d.so", argv[1], rank);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&model_of = dlsym(library, "net_model");
    CHECK(model_of != NULL);
    model = model_of();
    mpi = onnxc_mpi_create(MPI_COMM_WORLD, TIMEOUT_MILLISECONDS);
    CHECK(mpi != NULL);
    options.communicator = onnxc_mpi_communicator(mpi);
    options.message = message;
    options.message_capacity = sizeof message;
    symbols = reserve(8 * model->symbol_count);
    for (at = 0; at < model->state_count; at++) {
        onnxc_state_info cache = onnxc_model_state(model, (int32_t)at);
        for (axis = 0; axis < cache.tensor.rank; axis++) {
            if (cache.tensor.symbols[axis] >= 0) {
                symbols[cache.tensor.symbols[axis]] = axis == cache.axis ? CONTEXT : 1;
            }
        }
    }
    state_bytes = onnxc_model_state_bytes(model)(symbols, (size_t)model->symbol_count);
    state = reserve(state_bytes);
    CHECK(onnxc_model_state_reset(model)(state, (size_t)state_bytes, symbols, (size_t)model->symbol_count) == ONNXC_OK);
    vocabulary = onnxc_model_output(model, 0).dims[2];
    while (wanted-- > 0) {
        int64_t fresh = count - done, dims[] = {1, fresh}, logits_dims[] = {1, fresh, vocabulary};
        int64_t state_dims[] = {state_bytes}, workspace_bytes, best = 0;
        int64_t logits_bytes = fresh * vocabulary * (int64_t)sizeof(float);
        float *logits = reserve(logits_bytes);
        onnxc_tensor inputs[2], output = onnxc_make_tensor(logits, (size_t)logits_bytes, ONNXC_FLOAT, 3, logits_dims);
        void *workspace;
        int32_t status;
        inputs[0] = onnxc_make_tensor(tokens + done, (size_t)fresh * 8, ONNXC_INT64, 2, dims);
        inputs[1] = onnxc_make_tensor(state, (size_t)state_bytes, ONNXC_UINT8, 1, state_dims);
        CHECK(model->input_count == 2);
        workspace_bytes = onnxc_model_workspace_for(model, inputs, 2, symbols);
        workspace = reserve(workspace_bytes);
        status = onnxc_model_run(model)(inputs, 2, &output, 1, workspace, (size_t)workspace_bytes, &options);
        if (status != ONNXC_OK) {
            fprintf(stderr, "rank %d: status %d: %s\n", rank, (int)status, message);
            return 1;
        }
        done = count;
        for (at = 1; at < vocabulary; at++) {
            const float *last = logits + (fresh - 1) * vocabulary;
            best = last[at] > last[best] ? at : best;
        }
        tokens[count++] = best;
        onnxc_release(NULL, logits, (size_t)logits_bytes + 1, ONNXC_WORKSPACE_ALIGNMENT);
        onnxc_release(NULL, workspace, (size_t)workspace_bytes + 1, ONNXC_WORKSPACE_ALIGNMENT);
    }
    for (at = 0; rank == 0 && at < count; at++) {
        printf("%" PRId64 "%s", tokens[at], at + 1 < count ? " " : "\n");
    }
    fprintf(stderr, "rank %d: %" PRId64 " bytes of caches, %" PRIu64 " bytes sent\n", rank, state_bytes, onnxc_mpi_bytes(mpi));
    print_memory(rank);
    onnxc_mpi_destroy(mpi);
    MPI_Finalize();
    return 0;
}
