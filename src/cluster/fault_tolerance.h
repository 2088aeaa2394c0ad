// MPI's User Level Failure Mitigation (ULFM; Bland et al. 2013, "Post-failure recovery of MPI communication
// capability"), for the files of this folder. Its functions are looked up in the MPI library that the program runs
// with, so that one executable serves libraries with and without them.
#pragma once

#include <vector>

#include "cluster/mpi_check.h"

namespace ringtrain {

class FaultTolerance {
 public:
  // Throws Error, with advice, where the library lacks it or the launcher has not switched it on.
  static const FaultTolerance& get();
  static bool is_switched_on();  // in Open MPI; from any thread

  // Ends this process so that the others learn of it, and the job with this exit code. mpirun, told to go on without
  // processes that die, lets MPI_Abort end nobody else, tells nobody of a process that exits, and its own exit code is 0
  // where all were killed. So a rank kills itself, and the lowest one that lives waits for the deaths of the others,
  // which it has told by revoking their communicators, and exits. For the main thread.
  [[noreturn]] static void end_job(int exit_code);
  static void end_with_job(MPI_Comm comm);  // end_job() revokes it

  // Ranks of `comm` that have died, as this process knows now; MPI_ANY_SOURCE no longer waits for those. Local.
  std::vector<int> find_dead(MPI_Comm comm) const;
  // Ends what any rank has under way on `comm`, with an error. Not collective.
  void revoke(MPI_Comm comm) const;
  // Whether all ranks of `comm` live and say so; the same answer on all that live. Collective, on a revoked one too.
  bool agree(MPI_Comm comm, bool mine) const;
  // The living ranks of `comm`, in its order. Collective over those.
  MPI_Comm shrink(MPI_Comm comm) const;

 private:
  int (*failure_ack_)(MPI_Comm) = nullptr;
  int (*failure_get_acked_)(MPI_Comm, MPI_Group*) = nullptr;
  int (*revoke_)(MPI_Comm) = nullptr;
  int (*agree_)(MPI_Comm, int*) = nullptr;
  int (*shrink_)(MPI_Comm, MPI_Comm*) = nullptr;
};

// The places in `comm`'s group of the ranks of `part`'s; MPI_UNDEFINED for one that is in `part` only.
std::vector<int> places_in(MPI_Comm comm, MPI_Group part);

}  // namespace ringtrain
