// How the files of this folder call MPI: mpi.h without its C++ bindings, error codes as exceptions, and the MPI
// communicators of a group of ranks. Outside of this folder, the programs include it for on_rank_0(), and
// data_prep/common/ranks.cpp calls MPI, too.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <time.h>

#include <exception>
#include <functional>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "cluster/communicator.h"
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

template <class Value>
MPI_Datatype mpi_type() {
  static_assert(std::is_same_v<Value, float> || std::is_same_v<Value, double> || sizeof(Value) == 1);
  return std::is_same_v<Value, float> ? MPI_FLOAT : std::is_same_v<Value, double> ? MPI_DOUBLE : MPI_BYTE;
}

// post_send() and post_receive() start a message of at most INT_MAX values. What is sent counts in sent_bytes().
template <class Value>
void post_send(MPI_Comm comm, std::span<Value> values, int to, int tag, MPI_Request& request,
               std::source_location where = std::source_location::current()) {
  const int count = static_cast<int>(values.size());
  const MPI_Datatype type = mpi_type<std::remove_const_t<Value>>();
  check_mpi(MPI_Isend(values.data(), count, type, to, tag, comm, &request), "MPI_Isend", where);
  sent_bytes().by_message += std::ssize(std::as_bytes(values));
}
template <class Value>
void post_receive(MPI_Comm comm, std::span<Value> values, int from, int tag, MPI_Request& request,
                  std::source_location where = std::source_location::current()) {
  const int count = static_cast<int>(values.size());
  check_mpi(MPI_Irecv(values.data(), count, mpi_type<Value>(), from, tag, comm, &request), "MPI_Irecv", where);
}

// Returns whether all messages of the requests have ended. Never blocks.
inline bool all_done(std::span<MPI_Request> requests, std::source_location where = std::source_location::current()) {
  int done = 0;
  const int code = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
  check_mpi(code, "MPI_Testall", where);
  return done != 0;
}

// An MPI communicator that this object frees. After an error it stays with MPI: other ranks may never come to free it,
// and a late message may still arrive.
class OwnComm {
 public:
  explicit OwnComm(MPI_Comm comm) : comm_(comm) {}
  ~OwnComm() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (comm_ != MPI_COMM_NULL && !finalized && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  OwnComm(const OwnComm&) = delete;
  OwnComm& operator=(const OwnComm&) = delete;
  operator MPI_Comm() const { return comm_; }
  void abandon() { comm_ = MPI_COMM_NULL; }  // leaves it to MPI

 private:
  MPI_Comm comm_;
};

// Makes a communicator of those ranks of `comm` that are on this rank's node, in the order of `comm`. The caller frees
// it. Collective over `comm`.
inline MPI_Comm part_on_node(MPI_Comm comm) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  return node;
}

struct RankGroup::State {
  explicit State(MPI_Comm taken);

  OwnComm comm;  // for meet() and texts; sums have communicators of their own
  OwnComm node;
  int rank = 0, size = 1, node_rank = 0, node_size = 1;
  std::string host;
  std::vector<std::string> hosts;
};

// Makes a communicator of the group's ranks, which returns errors and which the caller frees. Collective.
MPI_Comm duplicate(const RankGroup& group);

}  // namespace ringtrain
