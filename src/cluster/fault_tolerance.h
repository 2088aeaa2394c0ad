// MPI's User Level Failure Mitigation (ULFM; Bland et al. 2013, "Post-failure recovery of MPI communication
// capability"), for the files of this folder. The program looks up ULFM's functions at run time, so one executable
// works with MPI libraries that have them and with libraries that lack them.
#pragma once

#include <vector>

#include "cluster/mpi_check.h"

namespace ringtrain {

class FaultTolerance {
 public:
  // Throws Error, with advice, if the library has no fault tolerance or the launcher has not switched it on.
  static const FaultTolerance& get();
  static bool is_switched_on();  // in Open MPI; may be called from any thread

  // Ends the job with this exit code. An mpirun with fault tolerance goes on without dead processes. MPI_Abort then
  // ends only the process that calls it. The other ranks do not learn of a process that exits, only of one that is
  // killed. mpirun's own exit code is 0 if all processes were killed. Therefore each rank kills itself, except the
  // lowest living rank. That rank revokes the communicators and waits up to 5 s for the deaths of the others. If all
  // others are dead by then, it exits with the exit code. Otherwise it kills itself too. Call this from the main
  // thread.
  [[noreturn]] static void end_job(int exit_code);
  static void end_with_job(MPI_Comm comm);  // end_job() revokes it

  // Returns the ranks of `comm` that this process knows to be dead. MPI_ANY_SOURCE no longer waits for them. Local.
  std::vector<int> find_dead(MPI_Comm comm) const;
  // Ends all operations of all ranks on `comm` with an error. Not collective.
  void revoke(MPI_Comm comm) const;

 private:
  int (*failure_ack_)(MPI_Comm) = nullptr;
  int (*failure_get_acked_)(MPI_Comm, MPI_Group*) = nullptr;
  int (*revoke_)(MPI_Comm) = nullptr;
};

}  // namespace ringtrain
