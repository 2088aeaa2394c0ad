// Sums whose result is on one rank, and broadcasts in the background. Parameter servers need both.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "cluster/mpi_counter_sums.h"

namespace ringtrain {

// Values travel in chunks. A root receives a few chunks of every rank at a time. When a chunk has arrived from all
// ranks, the root adds them in the order of the ranks, so the bits are the same each time. Messages are matched by
// their order, so all ranks must start the same sums and broadcasts in the same order. `left` counts the chunks under
// way. It falls inside progress().
class MpiRootSums {
 public:
  // `comm` outlives this object, and has no other messages with these two tags. `chunk` is a number of elements.
  MpiRootSums(MPI_Comm comm, int sum_tag, int broadcast_tag, std::size_t chunk);
  MpiRootSums(const MpiRootSums&) = delete;
  MpiRootSums& operator=(const MpiRootSums&) = delete;

  void start_sum(std::span<float> values, int root, const PartsLeft& left);
  void start_broadcast(std::span<float> values, int root, const PartsLeft& left);
  void progress();

 private:
  struct Part {
    std::span<float> values;
    PartsLeft left;
    bool receives = false;
    std::vector<std::vector<float>> incoming = {};  // for a sum: by rank; empty for this rank
    std::vector<MPI_Request> requests = {};         // empty: not posted yet
  };
  void post_receives(Part& part);
  void add(Part& part);
  static bool done(Part& part);

  MPI_Comm comm_;
  int sum_tag_, broadcast_tag_;
  int rank_ = 0, size_ = 1;
  std::size_t chunk_, window_;
  std::deque<Part> sums_;                 // sums whose root is this rank; the first window_ are posted
  std::deque<Part> transfers_;            // all other sums and broadcasts
  std::vector<std::vector<float>> free_;  // buffers that can be used again
  std::vector<float> total_;
};

}  // namespace ringtrain
