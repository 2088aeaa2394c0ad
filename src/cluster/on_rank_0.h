// Lets one process of a job of several ranks do some work.
#pragma once

#include <time.h>

#include <functional>

#include "cluster/mpi_check.h"

namespace ringtrain {

// Rank 0 does the work, and the other ranks sleep until it has ended. All ranks return its exit code. Collective. MPI
// must have been started. If `work` throws, the other ranks stay asleep, so the code that catches the exception must
// end the job.
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
