// The job as MPI sees it: who am I, who shares my node, and how it ends.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

// MPI_Init_thread (FUNNELED: only the main thread communicates) .. MPI_Finalize. One per process.
class Session {
 public:
  // Throws Error, with advice, when MPI has fewer ranks than the launcher has started (N singletons under srun without
  // PMIx).
  Session(int* argc, char*** argv);
  ~Session();  // MPI_Finalize, unless an exception is in flight
  // MPI_Finalize when all ranks have done their work; returns the exit code. Where MPI does not come back from it, the
  // process ends with that code after 20 s.
  int finish(int exit_code);
  int rank() const { return rank_; }
  int size() const { return size_; }
  int node_rank() const { return node_rank_; }  // among the ranks of this node
  int node_size() const { return node_size_; }
  const std::string& host() const { return host_; }
  const std::vector<std::string>& hosts() const { return hosts_; }  // of every rank, in rank order

  const std::string& launcher() const { return launcher_; }  // launcher_name()
  // A text of each rank of this node, by node rank. Collective over the job.
  std::vector<std::string> gather_on_node(const std::string& mine) const;

  // CPUs of this rank: its affinity mask, shared out evenly when several ranks of the node have the same mask
  // (unbound ranks). At least 1.
  int available_threads() const { return available_threads_; }
  bool oversubscribed() const { return oversubscribed_; }  // more ranks than CPUs in the mask

  static std::string mpi_version();  // "Open MPI 4.1.4"

 private:
  int rank_ = 0, size_ = 1, node_rank_ = 0, node_size_ = 1, available_threads_ = 1;
  bool oversubscribed_ = false, finished_ = false;
  std::string host_, launcher_;
  std::vector<std::string> hosts_;
};

// Ends every rank of the job with this exit code; does not return, cannot hang (after 3 s the process exits by itself).
[[noreturn]] void abort_job(int exit_code);

// Ranks of the job; 0 before MPI is up.
int job_size();

// "rank 2 on node17", or "" before MPI is up: for error messages from any thread.
std::string rank_label();

}  // namespace ringtrain
