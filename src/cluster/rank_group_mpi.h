// The data of a group of ranks that MPI needs, for the files of this folder.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/mpi_check.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// An MPI communicator of those ranks of `comm` that are on this rank's node, in the order of `comm`. Its construction
// is collective over `comm`.
class NodeCommunicator {
 public:
  explicit NodeCommunicator(MPI_Comm comm) {
    check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node_), "MPI_Comm_split_type");
  }
  ~NodeCommunicator() {
    if (node_ != MPI_COMM_NULL) MPI_Comm_free(&node_);
  }
  NodeCommunicator(const NodeCommunicator&) = delete;
  NodeCommunicator& operator=(const NodeCommunicator&) = delete;
  MPI_Comm get() const { return node_; }
  void abandon() { node_ = MPI_COMM_NULL; }  // leaves it to MPI

 private:
  MPI_Comm node_ = MPI_COMM_NULL;
};

struct RankGroup::State {
  State(MPI_Comm taken, bool whole_job);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  MPI_Comm comm;  // for failures, meet() and texts; sums have communicators of their own
  NodeCommunicator node;
  bool ends_job;
  int rank = 0, size = 1, node_rank = 0, node_size = 1;
  std::string host;
  std::vector<std::string> hosts;

  std::unique_ptr<const std::string> failure;  // the failure that the others are told of; null: none
  std::vector<MPI_Request> telling;
  unsigned looks = 0;
  std::function<void()> lookout;
  double looked_out = 0;  // time by now_seconds()
  std::atomic<bool> demanded{false};
  std::mutex mutex;
  std::string demand;  // guarded by `mutex`
};

// Makes a communicator of the group's ranks, which the caller frees. Collective. Throws GroupFailed.
MPI_Comm duplicate(const RankGroup& group);

}  // namespace ringtrain
