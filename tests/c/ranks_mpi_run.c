/* Runs a model on ranks over MPI, again and again, until another rank is gone: ranks_mpi_run MILLISECONDS. Every rank prints its number and
 * that of its process when it is under way, and the status with which it ended. */
#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "onnxc_mpi.h"

/* The models of all ranks, written by the test. */
#include "models.h"

enum { RANKS = sizeof models / sizeof models[0], RUNS_BEFORE = 3 };

static void *reserve(size_t bytes) {
    char *memory = malloc(bytes + 64);
    CHECK(memory != NULL);
    return memory + (64 - (size_t)(uintptr_t)memory % 64) % 64;
}

int main(int argc, char **argv) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    onnxc_tensor input, output;
    int64_t dims[] = {5, 16}, workspace_bytes, symbols[8], runs;
    size_t bytes = sizeof(float) * 5 * 16;
    float *x = reserve(bytes), *y = reserve(bytes);
    int rank, size, at;
    int32_t status = ONNXC_OK;
    const onnxc_model *model;
    void *workspace;
    onnxc_mpi *mpi;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(argc == 2 && size == RANKS);
    (void)others;
    model = models[rank]();
    for (at = 0; at < 5 * 16; at++) {
        x[at] = 0.01f * (float)(at % 37) - 0.2f;
    }
    input = onnxc_make_tensor(x, bytes, ONNXC_FLOAT, 2, dims);
    output = onnxc_make_tensor(y, bytes, ONNXC_FLOAT, 2, dims);
    CHECK(model->symbol_count <= 8);
    workspace_bytes = onnxc_model_workspace_for(model, &input, 1, symbols);
    CHECK(workspace_bytes >= 0);
    workspace = reserve((size_t)workspace_bytes);
    mpi = onnxc_mpi_create(MPI_COMM_WORLD, strtoll(argv[1], NULL, 10));
    CHECK(mpi != NULL);
    options.communicator = onnxc_mpi_communicator(mpi);
    for (runs = 0; status == ONNXC_OK; runs++) {
        status = onnxc_model_run(model)(&input, 1, &output, 1, workspace, (size_t)workspace_bytes, &options);
        if (runs == RUNS_BEFORE) {
            printf("runs %d %ld\n", rank, (long)getpid());
            fflush(stdout);
        }
    }
    printf("ended %d %d\n", rank, (int)status);
    fflush(stdout);
    /* MPI_Finalize would wait for who is gone. */
    _exit(1);
}
