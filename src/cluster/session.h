// The job as MPI sees it: this process's rank, the ranks of its node, and the start and end of MPI.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/rank_group.h"

namespace ringtrain {

// MPI_Init_thread (FUNNELED: only the main thread communicates) .. MPI_Finalize. One per process.
class Session {
 public:
  // Throws Error, with advice, when MPI has fewer ranks than the launcher has started (N singletons under srun without
  // PMIx).
  Session(int* argc, char*** argv);
  ~Session();  // MPI_Finalize, unless an exception is in flight
  // Calls MPI_Finalize when all ranks have done their work, and returns the exit code. Where MPI_Finalize does not
  // return, the process ends with that code after 20 s.
  int finish(int exit_code);

  const RankGroup& job() const { return *job_; }  // all ranks
  int rank() const { return job().rank(); }
  int size() const { return job().size(); }
  int node_rank() const { return job().node_rank(); }
  int node_size() const { return job().node_size(); }
  const std::string& host() const { return job().host(); }
  const std::vector<std::string>& hosts() const { return job().hosts(); }

  const std::string& launcher() const { return launcher_; }  // launcher_name()

  // CPUs of this rank: its affinity mask, shared out evenly when several ranks of the node have the same mask
  // (unbound ranks). At least 1.
  int available_threads() const { return available_threads_; }
  bool oversubscribed() const { return oversubscribed_; }  // more ranks than CPUs in the mask

  static std::string mpi_version();  // "Open MPI 4.1.4"

 private:
  std::optional<RankGroup> job_;
  int available_threads_ = 1;
  bool oversubscribed_ = false, finished_ = false;
  std::string launcher_;
};

// Ends every rank of the job with this exit code; does not return, cannot hang (after 3 s, 8 s with fault
// tolerance, the process exits by itself).
[[noreturn]] void abort_job(int exit_code);

// Ends only this process, at once. A rank calls it when it cannot go on but other ranks of the job can. The launcher
// decides what happens to the other ranks (mpirun --enable-recovery, srun --kill-on-bad-exit=0).
[[noreturn]] void leave_job(int exit_code);

// Ranks of the job; 0 before MPI is up.
int job_size();

// "rank 2 on node17", or "" before MPI is up: for error messages from any thread.
std::string rank_label();
const char* rank_label_text();  // the same, where there may be no memory

}  // namespace ringtrain
