/* Continues a text by a language model that several processes run together, each with its share of the weights and caches:
 *
 *     mpirun -n 2 ranks COUNT TOKEN ...
 *
 * appends COUNT tokens, each time the most probable one, and prints the numbers of all. All ranks give the same inputs and get the same
 * outputs; rank 0 prints. One process alone runs the whole model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxc_mpi.h"

const onnxc_model *chat_whole_model(void);

/* The models of all ranks, written by the Makefile. */
#include "models.h"

enum { CONTEXT = 512, RANKS = sizeof models / sizeof models[0] };

/* How long a rank waits for another one. */
enum { TIMEOUT_MILLISECONDS = 60000 };

static int rank, size;

/* The others do not wait: mpirun ends them. */
_Noreturn static void fail(const char *message) {
    fprintf(stderr, "rank %d: %s\n", rank, message);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    exit(EXIT_FAILURE);
}

static void *reserve(int64_t bytes) {
    void *memory = bytes < 0 ? NULL : onnxc_allocate(NULL, (size_t)bytes + 1, ONNXC_WORKSPACE_ALIGNMENT);
    if (memory == NULL) {
        fail("too little memory");
    }
    return memory;
}

static int32_t input_index(const onnxc_model *model, const char *name) {
    int32_t at;
    for (at = 0; at < model->input_count; at++) {
        if (strcmp(onnxc_model_input(model, at).name, name) == 0) {
            return at;
        }
    }
    fail("the model has not the inputs that are wanted");
}

/* The state block, with room for the whole context. */
static void *open_state(const onnxc_model *model, int64_t *symbols, size_t *bytes) {
    int64_t needed;
    int32_t at, axis;
    void *state;
    for (at = 0; at < model->state_count; at++) {
        onnxc_state_info cache = onnxc_model_state(model, at);
        for (axis = 0; axis < cache.tensor.rank; axis++) {
            if (cache.tensor.symbols[axis] >= 0) {
                symbols[cache.tensor.symbols[axis]] = axis == cache.axis ? CONTEXT : 1;
            }
        }
    }
    needed = onnxc_model_state_bytes(model)(symbols, (size_t)model->symbol_count);
    state = reserve(needed);
    *bytes = (size_t)needed;
    if (onnxc_model_state_reset(model)(state, *bytes, symbols, (size_t)model->symbol_count) != ONNXC_OK) {
        fail("the state cannot be reset");
    }
    return state;
}

/* Runs the model on tokens behind `length` others; the most probable next token. */
static int64_t feed(const onnxc_model *model, const onnxc_options *options, void *state, size_t state_bytes, int64_t length,
                    const int64_t *tokens, int64_t count) {
    int64_t vocabulary = onnxc_model_output(model, 0).dims[2], end = length + count, at, best = 0, workspace_bytes;
    int64_t dims[] = {1, count}, mask_dims[] = {1, end}, logits_dims[] = {1, count, vocabulary};
    int64_t state_dims[] = {(int64_t)state_bytes};
    int64_t *mask = reserve(end * 8), *positions = reserve(count * 8), *symbols = reserve(model->symbol_count * 8);
    size_t logits_bytes = (size_t)(count * vocabulary) * sizeof(float);
    float *logits = reserve((int64_t)logits_bytes);
    onnxc_tensor inputs[4], output = onnxc_make_tensor(logits, logits_bytes, ONNXC_FLOAT, 3, logits_dims);
    void *workspace;
    int32_t status;
    for (at = 0; at < end; at++) {
        mask[at] = 1;
    }
    for (at = 0; at < count; at++) {
        positions[at] = length + at;
    }
    if (model->input_count != 4) {
        fail("the model has not the inputs that are wanted");
    }
    inputs[input_index(model, "input_ids")] = onnxc_make_tensor(tokens, (size_t)count * 8, ONNXC_INT64, 2, dims);
    inputs[input_index(model, "attention_mask")] = onnxc_make_tensor(mask, (size_t)end * 8, ONNXC_INT64, 2, mask_dims);
    inputs[input_index(model, "position_ids")] = onnxc_make_tensor(positions, (size_t)count * 8, ONNXC_INT64, 2, dims);
    inputs[3] = onnxc_make_tensor(state, state_bytes, ONNXC_UINT8, 1, state_dims);
    workspace_bytes = onnxc_model_workspace_for(model, inputs, 4, symbols);
    workspace = reserve(workspace_bytes);
    status = onnxc_model_run(model)(inputs, 4, &output, 1, workspace, (size_t)workspace_bytes, options);
    if (status != ONNXC_OK) {
        fail(options->message);
    }
    for (at = 1; at < vocabulary; at++) {
        const float *last = logits + (count - 1) * vocabulary;
        best = last[at] > last[best] ? at : best;
    }
    onnxc_release(NULL, mask, (size_t)end * 8 + 1, ONNXC_WORKSPACE_ALIGNMENT);
    onnxc_release(NULL, positions, (size_t)count * 8 + 1, ONNXC_WORKSPACE_ALIGNMENT);
    onnxc_release(NULL, symbols, (size_t)model->symbol_count * 8 + 1, ONNXC_WORKSPACE_ALIGNMENT);
    onnxc_release(NULL, logits, logits_bytes + 1, ONNXC_WORKSPACE_ALIGNMENT);
    onnxc_release(NULL, workspace, (size_t)workspace_bytes + 1, ONNXC_WORKSPACE_ALIGNMENT);
    return best;
}

int main(int argc, char **argv) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    char message[256] = "";
    const onnxc_model *model;
    int64_t tokens[CONTEXT], count = 0, wanted = argc > 1 ? strtoll(argv[1], NULL, 10) : 0, at;
    size_t state_bytes;
    void *state;
    onnxc_mpi *mpi;
    double start;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 1 && size != RANKS) {
        fail("the program was made for another number of ranks");
    }
    for (at = 2; at < argc && count < CONTEXT; at++) {
        tokens[count++] = strtoll(argv[at], NULL, 10);
    }
    if (count == 0 || wanted < 0 || count + wanted > CONTEXT) {
        fail("usage: ranks COUNT TOKEN ...");
    }
    mpi = onnxc_mpi_create(MPI_COMM_WORLD, TIMEOUT_MILLISECONDS);
    if (mpi == NULL) {
        fail("there is no communicator");
    }
    model = size == 1 ? chat_whole_model() : models[rank]();
    options.communicator = onnxc_mpi_communicator(mpi);
    options.message = message;
    options.message_capacity = sizeof message;
    {
        int64_t *symbols = calloc((size_t)model->symbol_count + 1, sizeof *symbols);
        if (symbols == NULL) {
            fail("too little memory");
        }
        state = open_state(model, symbols, &state_bytes);
        free(symbols);
    }
    start = MPI_Wtime();
    for (at = 0; at < wanted; at++) {
        /* The prompt first, then one token after the other. */
        int64_t from = at == 0 ? 0 : count - 1;
        tokens[count] = feed(model, &options, state, state_bytes, from, tokens + from, count - from);
        count++;
    }
    fprintf(stderr, "rank %d of %d: %zu bytes of caches, %" PRIu64 " bytes sent, %.3f s\n", rank, size, state_bytes,
            onnxc_mpi_bytes(mpi), MPI_Wtime() - start);
    for (at = 0; rank == 0 && at < count; at++) {
        printf("%" PRId64 "\n", tokens[at]);
    }
    onnxc_release(NULL, state, state_bytes + 1, ONNXC_WORKSPACE_ALIGNMENT);
    onnxc_mpi_destroy(mpi);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
