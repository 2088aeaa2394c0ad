// How the files of this folder call MPI: mpi.h without its C++ bindings, error codes as exceptions, and the MPI
// communicators of a group of ranks. Outside of this folder, the programs include it for on_rank_0(), and
// data_prep/common/ranks.cpp calls MPI, too.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <time.h>

#include <functional>
#include <source_location>
#include <string>
#include <vector>

#include "base/error.h"
#include "cluster/rank_group.h"

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
