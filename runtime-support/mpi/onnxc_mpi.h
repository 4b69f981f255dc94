/* onnxc_mpi.h: the communicator of onnxc.h over MPI. C99 and C++. */
#ifndef ONNXC_MPI_H
#define ONNXC_MPI_H

#include <mpi.h>

#include "onnxc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct onnxc_mpi onnxc_mpi;

/* Ranks are those of `communicator`, which is duplicated: all its processes call this. A rank that waits longer than this for
 * another one gets ONNXC_TIMEOUT. NULL where MPI or memory fails. MPI must be initialized; where several threads of a process use MPI, with
 * MPI_THREAD_MULTIPLE. */
onnxc_mpi *onnxc_mpi_create(MPI_Comm communicator, int64_t timeout_milliseconds);

/* For options.communicator. */
const onnxc_communicator *onnxc_mpi_communicator(const onnxc_mpi *mpi);

/* Bytes that this rank has sent. */
uint64_t onnxc_mpi_bytes(const onnxc_mpi *mpi);

/* Ends it, on all ranks, before MPI_Finalize; after a failure it may be called on some ranks alone. NULL is ignored. */
void onnxc_mpi_destroy(onnxc_mpi *mpi);

#ifdef __cplusplus
}
#endif

#endif /* ONNXC_MPI_H */
