// Sums a few numbers over the ranks. The latency of the messages decides how long such a sum takes, so it uses few
// rounds.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "cluster/mpi_check.h"

namespace ringtrain {

using PartsLeft = std::shared_ptr<std::size_t>;  // number of parts of a collective that are still under way

// Recursive doubling (Rabenseifner 2004, section 2). In round k = 1, 2, ... the partners rank and rank ^ 2^(k - 1)
// exchange their values and add them. p ranks have log2(p) such rounds, rounded down. Both partners get the same bits
// because a + b = b + a. Ranks beyond the largest power of two give their values to a partner in round 0, and get the
// result in one more round at the end. All ranks start the same sums in the same order. One sum is under way at a time.
class MpiCounterSums {
 public:
  // `comm` must outlive this object, and must have no other messages with this tag.
  MpiCounterSums(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}
  void start(std::span<double> values, const PartsLeft& left);  // adds 1 to *left; progress() subtracts it again
  void progress();

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
  std::deque<Sum> sums_;  // the first one is under way
  MPI_Request requests_[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

}  // namespace ringtrain
