// Sums by the MPI library's own all-reduce, with which the other algorithms can be compared.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cluster/mpi_counter_sums.h"
#include "cluster/rank_group_mpi.h"

namespace ringtrain {

class MpiLibrarySums {
 public:
  // Collective over the group.
  explicit MpiLibrarySums(const RankGroup& group);
  ~MpiLibrarySums();
  MpiLibrarySums(const MpiLibrarySums&) = delete;
  MpiLibrarySums& operator=(const MpiLibrarySums&) = delete;

  // `values` has at most INT_MAX elements. *left grows by one, and falls by one inside progress().
  void start(std::span<float> values, const PartsLeft& left);
  void progress();

 private:
  struct Sum {
    MPI_Request request;
    PartsLeft left;
  };
  RankGroup group_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<Sum> sums_;
};

}  // namespace ringtrain
