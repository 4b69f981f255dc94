/* The communicator over MPI without a model: what it computes, and what it gives where a rank lags, fails or runs another model. Every rank
 * prints a line for each case; the test compares them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "onnxc_mpi.h"

/* A time that no rank waits for, on however slow a machine. */
enum { LONG = 70000, HANG = 45 * 60 * 1000 };

static int rank, size;

static void print(const char *name, int32_t status) {
    printf("%d %s %d\n", rank, name, (int)status);
    fflush(stdout);
}

static onnxc_mpi *open_ranks(int64_t milliseconds) {
    onnxc_mpi *mpi = onnxc_mpi_create(MPI_COMM_WORLD, milliseconds);
    if (mpi == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return mpi;
}

static void pause_for(long milliseconds) {
    struct timespec time;
    time.tv_sec = milliseconds / 1000;
    time.tv_nsec = milliseconds % 1000 * 1000000;
    nanosleep(&time, NULL);
}

/* 1 where every element of a sum is that of the ranks' numbers in order. */
static int sums(const onnxc_communicator *c, int64_t count) {
    float *from = calloc((size_t)count, sizeof *from), *to = calloc((size_t)count, sizeof *to);
    int64_t at, other;
    int good = from != NULL && to != NULL;
    for (at = 0; good && at < count; at++) {
        from[at] = 0.1f * (float)(at % 97) + 0.3f * (float)rank;
    }
    good = good && c->all_reduce(c->context, 0, 1, size, ONNXC_SUM, ONNXC_FLOAT, from, to, count) == ONNXC_OK;
    for (at = 0; good && at < count; at++) {
        float wanted = 0.1f * (float)(at % 97);
        for (other = 1; other < size; other++) {
            wanted += 0.1f * (float)(at % 97) + 0.3f * (float)other;
        }
        good = to[at] == wanted;
    }
    free(from);
    free(to);
    return good;
}

/* 1 where each rank has the bytes of all. */
static int gathers(const onnxc_communicator *c) {
    int64_t parts[64], at, all = 0;
    unsigned char own[64], to[64 * 64];
    int64_t behind = 0;
    for (at = 0; at < size; at++) {
        parts[at] = at % 3;
        all += parts[at];
    }
    for (at = 0; at < parts[rank]; at++) {
        own[at] = (unsigned char)(10 * rank + at);
    }
    if (c->all_gather(c->context, 0, 1, size, 1, own, to, parts) != ONNXC_OK) {
        return 0;
    }
    for (at = 0; at < size; at++) {
        int64_t k;
        for (k = 0; k < parts[at]; k++) {
            if (to[behind++] != 10 * at + k) {
                return 0;
            }
        }
    }
    return behind == all;
}

int main(int argc, char **argv) {
    onnxc_mpi *mpi;
    const onnxc_communicator *c;
    int32_t status;
    char byte = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    mpi = open_ranks(HANG);
    c = onnxc_mpi_communicator(mpi);
    print("begin", c->begin(c->context, 7));
    print("sums", sums(c, 1) && sums(c, 5) && sums(c, LONG) ? 0 : 1);
    print("gathers", gathers(c) ? 0 : 1);
    print("again", c->begin(c->context, 7));
    onnxc_mpi_destroy(mpi);

    mpi = open_ranks(HANG);
    c = onnxc_mpi_communicator(mpi);
    print("other", c->begin(c->context, rank == 0 ? 1 : 2));
    onnxc_mpi_destroy(mpi);

    mpi = open_ranks(HANG);
    c = onnxc_mpi_communicator(mpi);
    status = rank == size - 1 ? c->abort(c->context, 11) : c->begin(c->context, 7);
    print("failed", status);
    MPI_Barrier(MPI_COMM_WORLD);
    onnxc_mpi_destroy(mpi);

    mpi = open_ranks(300);
    c = onnxc_mpi_communicator(mpi);
    if (rank == size - 1) {
        pause_for(2000);
        status = ONNXC_OK;
    } else {
        status = c->receive(c->context, size - 1, &byte, 1);
    }
    print("lags", status);
    MPI_Barrier(MPI_COMM_WORLD);
    onnxc_mpi_destroy(mpi);
    MPI_Finalize();
    return 0;
}
