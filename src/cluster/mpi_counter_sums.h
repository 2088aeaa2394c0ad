// Sums over ranks of a few numbers, where latency is all.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cluster/mpi_check.h"

namespace ringtrain {

using PartsLeft = std::shared_ptr<std::size_t>;  // parts of a collective that still travel

// Recursive doubling: in round k partners rank and rank ^ 2^k exchange and add; log2(p) rounds, same bits on both sides
// because a + b = b + a. Ranks beyond the largest power of two hand their values to a partner first and get the result
// last. Rabenseifner 2004, section 2. All ranks start the same sums in the same order; one is under way at a time.
class MpiCounterSums {
 public:
  // `comm`: outlives this, and has no other messages with this tag.
  MpiCounterSums(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}
  void start(std::span<double> values, const PartsLeft& left);  // *left grows by one, and falls inside progress()
  void progress();

  // After an error: the requests that are open, for the caller to end; then forget().
  void take_requests(std::vector<MPI_Request>& receives, std::vector<MPI_Request>& sends) const;
  void forget();

 private:
  struct Sum {
    std::span<double> values;
    PartsLeft left;
    std::vector<double> incoming = {};
    int round = -1;
    bool add_incoming = false;
  };
  bool post_round(Sum& sum);

  MPI_Comm comm_;
  int tag_;
  std::deque<Sum> sums_;  // front: under way
  MPI_Request requests_[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

}  // namespace ringtrain
