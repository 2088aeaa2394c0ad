// Includes mpi.h without its C++ bindings, and turns error codes into exceptions. Only files of this folder include it.
#pragma once

#include <time.h>

#include <functional>

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <source_location>
#include <string>

#include "base/error.h"

namespace ringtrain {

// Works only on communicators that return errors (MPI_ERRORS_RETURN).
inline void check_mpi(int code, const char* call, std::source_location where = std::source_location::current()) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(cat(call, " failed: ", text), "another rank may have ended; look for its message above", where);
}

// Lets one process of a job of several ranks do some work. Rank 0 does the work, and the other ranks sleep until it has
// ended. All ranks return its exit code. Collective. MPI must have been started. If `work` throws, the other ranks stay
// asleep, so the code that catches the exception must end the job.
inline int on_rank_0(const std::function<int()>& work) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int code = rank == 0 ? work() : 0;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibcast(&code, 1, MPI_INT, 0, MPI_COMM_WORLD, &request), "MPI_Ibcast");
  for (int done = 0; done == 0;) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    const timespec moment{0, 1'000'000};
    if (done == 0) nanosleep(&moment, nullptr);
  }
  return code;
}

}  // namespace ringtrain
