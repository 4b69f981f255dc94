/* onnxc_mpi.c: a transport of onnxc.h over MPI 3. Compile it with mpicc: programs of different MPIs do not fit together.
 *
 * Only MPI_Isend, MPI_Irecv, MPI_Iprobe and MPI_Testsome are used: a collective operation of MPI cannot be given up. */
#define _POSIX_C_SOURCE 200809L
#include "onnxc_mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

/* Longest message: MPI counts in ints. */
#define PIECE ((size_t)1 << 30)

enum { TAG_DATA = 1, TAG_ABORT = 2 };

struct onnxc_mpi {
    MPI_Comm communicator;
    int rank;
    int size;
    int64_t timeout;
    int failed;
    uint64_t bytes;
    onnxc_communicator *made;
    MPI_Request *requests;
    MPI_Status *statuses;
    int *done;
    size_t room;
};

static int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static size_t pieces(size_t bytes) {
    return (bytes + PIECE - 1) / PIECE;
}

static int reserve(onnxc_mpi *mpi, size_t count) {
    MPI_Request *requests;
    MPI_Status *statuses;
    int *done;
    if (count <= mpi->room) {
        return 1;
    }
    requests = realloc(mpi->requests, count * sizeof *requests);
    if (requests != NULL) {
        mpi->requests = requests;
    }
    statuses = realloc(mpi->statuses, count * sizeof *statuses);
    if (statuses != NULL) {
        mpi->statuses = statuses;
    }
    done = realloc(mpi->done, count * sizeof *done);
    if (done != NULL) {
        mpi->done = done;
    }
    if (requests == NULL || statuses == NULL || done == NULL) {
        return 0;
    }
    mpi->room = count;
    return 1;
}

/* Whether another rank has failed. */
static int aborted(onnxc_mpi *mpi) {
    int there = 0;
    MPI_Status status;
    return MPI_Iprobe(MPI_ANY_SOURCE, TAG_ABORT, mpi->communicator, &there, &status) != MPI_SUCCESS || there;
}

/* Gives up what is under way. Buffers of sends may still be read: MPI has no way to take them back. */
static int32_t give_up(onnxc_mpi *mpi, size_t first, size_t count, int32_t status) {
    size_t i;
    mpi->failed = 1;
    for (i = first; i < count; i++) {
        if (mpi->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&mpi->requests[i]);
            MPI_Request_free(&mpi->requests[i]);
        }
    }
    return status;
}

/* Starts a message in pieces. */
static int start(onnxc_mpi *mpi, const onnxc_message *message, int is_send, size_t *count) {
    size_t at;
    for (at = 0; at < message->bytes; at += PIECE) {
        char *data = (char *)message->data + at;
        int bytes = (int)(message->bytes - at < PIECE ? message->bytes - at : PIECE);
        int rank = (int)message->rank;
        int code = is_send ? MPI_Isend(data, bytes, MPI_BYTE, rank, TAG_DATA, mpi->communicator, &mpi->requests[*count])
                           : MPI_Irecv(data, bytes, MPI_BYTE, rank, TAG_DATA, mpi->communicator, &mpi->requests[*count]);
        if (code != MPI_SUCCESS) {
            return 0;
        }
        ++*count;
        if (is_send) {
            mpi->bytes += (uint64_t)bytes;
        }
    }
    return 1;
}

static int32_t exchange(void *context, const onnxc_message *sends, size_t send_count, const onnxc_message *receives,
                        size_t receive_count) {
    onnxc_mpi *mpi = context;
    size_t i, count = 0, wanted = 0, received;
    int left;
    int64_t begin = milliseconds();
    unsigned turns = 0;
    if (mpi->failed) {
        return ONNXC_RANK_FAILED;
    }
    for (i = 0; i < receive_count; i++) {
        wanted += pieces(receives[i].bytes);
    }
    for (i = 0; i < send_count; i++) {
        wanted += pieces(sends[i].bytes);
    }
    if (!reserve(mpi, wanted)) {
        return ONNXC_OUT_OF_MEMORY;
    }
    for (i = 0; i < receive_count; i++) {
        if (!start(mpi, &receives[i], 0, &count)) {
            return give_up(mpi, 0, count, ONNXC_EXCHANGE_FAILED);
        }
    }
    received = count;
    for (i = 0; i < send_count; i++) {
        if (!start(mpi, &sends[i], 1, &count)) {
            return give_up(mpi, 0, count, ONNXC_EXCHANGE_FAILED);
        }
    }
    left = (int)count;
    while (left > 0) {
        int finished = 0, k, code;
        code = MPI_Testsome((int)count, mpi->requests, &finished, mpi->done, mpi->statuses);
        if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
            return give_up(mpi, 0, count, ONNXC_RANK_FAILED);
        }
        if (finished == MPI_UNDEFINED) {
            break;
        }
        for (k = 0; k < finished; k++) {
            int bytes = 0, at = mpi->done[k], class = MPI_SUCCESS;
            size_t own = (size_t)at, full = 0;
            if (code == MPI_ERR_IN_STATUS && mpi->statuses[k].MPI_ERROR != MPI_SUCCESS) {
                MPI_Error_class(mpi->statuses[k].MPI_ERROR, &class);
                return give_up(mpi, 0, count, class == MPI_ERR_TRUNCATE ? ONNXC_OTHER_MODEL : ONNXC_RANK_FAILED);
            }
            if (own >= received) {
                continue;
            }
            for (i = 0; i < receive_count; i++) {
                size_t parts = pieces(receives[i].bytes);
                if (own < parts) {
                    full = receives[i].bytes - own * PIECE < PIECE ? receives[i].bytes - own * PIECE : PIECE;
                    break;
                }
                own -= parts;
            }
            MPI_Get_count(&mpi->statuses[k], MPI_BYTE, &bytes);
            if ((size_t)bytes != full) {
                return give_up(mpi, 0, count, ONNXC_OTHER_MODEL);
            }
        }
        left -= finished;
        if (left > 0 && finished == 0 && ++turns % 64 == 0) {
            /* Others may share the processor. */
            sched_yield();
            if (aborted(mpi)) {
                return give_up(mpi, 0, count, ONNXC_RANK_FAILED);
            }
            if (milliseconds() - begin > mpi->timeout) {
                return give_up(mpi, 0, count, ONNXC_TIMEOUT);
            }
        }
    }
    return ONNXC_OK;
}

static int32_t abort_all(void *context, int32_t status) {
    onnxc_mpi *mpi = context;
    int rank;
    /* Static, as the messages may outlast the call. */
    static const char reason = 1;
    (void)status;
    mpi->failed = 1;
    for (rank = 0; rank < mpi->size; rank++) {
        MPI_Request request;
        if (rank != mpi->rank && MPI_Isend((void *)&reason, 1, MPI_BYTE, rank, TAG_ABORT, mpi->communicator, &request) == MPI_SUCCESS) {
            MPI_Request_free(&request);
        }
    }
    return ONNXC_OK;
}

onnxc_mpi *onnxc_mpi_create(MPI_Comm communicator, int64_t timeout_milliseconds) {
    onnxc_transport transport;
    onnxc_mpi *mpi = calloc(1, sizeof *mpi);
    if (mpi == NULL) {
        return NULL;
    }
    if (timeout_milliseconds < 0 || MPI_Comm_dup(communicator, &mpi->communicator) != MPI_SUCCESS) {
        free(mpi);
        return NULL;
    }
    MPI_Comm_set_errhandler(mpi->communicator, MPI_ERRORS_RETURN);
    MPI_Comm_rank(mpi->communicator, &mpi->rank);
    MPI_Comm_size(mpi->communicator, &mpi->size);
    mpi->timeout = timeout_milliseconds;
    transport.struct_size = sizeof transport;
    transport.context = mpi;
    transport.exchange = exchange;
    transport.abort = abort_all;
    mpi->made = onnxc_communicator_create(&transport, mpi->rank, mpi->size);
    if (mpi->made == NULL) {
        onnxc_mpi_destroy(mpi);
        return NULL;
    }
    return mpi;
}

const onnxc_communicator *onnxc_mpi_communicator(const onnxc_mpi *mpi) {
    return mpi->made;
}

uint64_t onnxc_mpi_bytes(const onnxc_mpi *mpi) {
    return mpi->bytes;
}

void onnxc_mpi_destroy(onnxc_mpi *mpi) {
    if (mpi == NULL) {
        return;
    }
    onnxc_communicator_destroy(mpi->made);
    /* After a failure the others may not come: what MPI keeps ends with the process. */
    if (!mpi->failed) {
        MPI_Comm_free(&mpi->communicator);
    }
    free(mpi->requests);
    free(mpi->statuses);
    free(mpi->done);
    free(mpi);
}
