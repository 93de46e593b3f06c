// SPDX-License-Identifier: Apache-2.0
// Loaded before the MPI library, stands for one that takes calls from the main thread only.
#include <mpi.h>

extern "C" int MPI_Query_thread(int* provided) {
  *provided = MPI_THREAD_FUNNELED;
  return MPI_SUCCESS;
}
