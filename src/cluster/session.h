// The job as MPI sees it: this process's rank, the ranks of its node, and the start and end of MPI.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/rank_group.h"

namespace ringtrain {

// Calls MPI_Init_thread (FUNNELED: only the main thread communicates) and MPI_Finalize. A process has one Session.
class Session {
 public:
  // Throws Error, with advice, if MPI has fewer ranks than the launcher has started processes. Under srun without PMIx,
  // each of N processes would be a job of one rank.
  Session(int* argc, char*** argv);
  ~Session();  // calls MPI_Finalize, unless finish() was called or an exception is in flight
  // Collective. Calls MPI_Finalize after all ranks have done their work, and returns the exit code. If MPI_Finalize
  // does not return within 20 s, the process ends with that code. If the code is not 0 and mpirun of Open MPI 4 has
  // started the job, rank 0 ends the job with MPI_Abort, and finish() does not return.
  int finish(int exit_code);

  const RankGroup& job() const { return *job_; }  // the group of all ranks
  int rank() const { return job().rank(); }
  int size() const { return job().size(); }
  int node_rank() const { return job().node_rank(); }
  int node_size() const { return job().node_size(); }
  const std::string& host() const { return job().host(); }
  const std::vector<std::string>& hosts() const { return job().hosts(); }

  const std::string& launcher() const { return launcher_; }  // see launcher_name()

  // Returns the number of CPUs in this rank's affinity mask, at least 1. A CPU that is in the masks of k ranks of the
  // node counts as 1/k, because ranks that are not bound share all CPUs. A control group's quota of CPU time may make
  // it smaller. The ranks that share a quota divide it.
  int available_threads() const { return available_threads_; }
  bool oversubscribed() const { return oversubscribed_; }  // this rank has less than one CPU for itself
  // Returns this rank's share of a quota of CPU time, if the quota allows less than the affinity mask.
  std::optional<double> cpu_quota() const { return cpu_quota_; }

 private:
  std::optional<RankGroup> job_;
  int available_threads_ = 1;
  bool oversubscribed_ = false, finished_ = false;
  std::optional<double> cpu_quota_;
  std::string launcher_;
};

// Ends every rank of the job with this exit code. It does not return and cannot hang: after 3 s, the process exits by
// itself.
[[noreturn]] void abort_job(int exit_code);

// Returns "rank 2 on node17", or "" before MPI has started, for error messages from any thread. Allocates no memory.
const char* rank_label();

}  // namespace ringtrain
