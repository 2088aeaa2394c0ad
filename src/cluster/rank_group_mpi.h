// The data of a group of ranks that MPI needs, for the files of this folder.
#pragma once

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
  explicit State(MPI_Comm taken);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  MPI_Comm comm;  // for meet() and texts; sums have communicators of their own
  NodeCommunicator node;
  int rank = 0, size = 1, node_rank = 0, node_size = 1;
  std::string host;
  std::vector<std::string> hosts;
};

// Makes a communicator of the group's ranks, which the caller frees. Collective.
MPI_Comm duplicate(const RankGroup& group);

}  // namespace ringtrain
