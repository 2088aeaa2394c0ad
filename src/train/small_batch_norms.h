// Squared norms of the gradients of a step's small batches, as one rank computes them: the gradient noise scale
// (optim/noise_scale.h) compares them with the norm of the whole batch.
//
// The passes of a step add up in one gradient vector. Where a step has several small batches on a rank, a second vector
// keeps what the gradient was before each of them, and the difference is measured. So the gradient is added up in the
// same order with the same bits whether or not it is measured. In a fixed order (communication.order) the gradient of
// each small batch is a node of a tree and is seen by itself; the norms are then added in the same tree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/tree_sum.h"
#include "optim/noise_groups.h"

namespace ringtrain {

class SmallBatchNorms {
 public:
  // Measures elements [0, trained) of the gradient. `bucket_elements`: of the buckets that are summed over the ranks.
  // `per_step`: small batches of this rank in a step. `total_at` (0: none): the element of the gradient, after all
  // that the passes write, that shall hold the sum too, so that the last bucket sums it over the ranks. `apart`: the
  // gradient of each small batch is seen by itself. `groups` of the tensors, which are ascending ranges, are told
  // apart; null: a bucket is measured as a whole.
  SmallBatchNorms(Backend& backend, std::int64_t trained, std::int64_t bucket_elements, std::int64_t per_step,
                  std::int64_t total_at, bool apart, const NoiseGroups* groups, std::span<const ElementRange> tensors);

  void begin();  // a step
  // A small batch has been added to the gradient (apart: is the gradient), and another one will follow.
  void measure(Vector& gradients);
  // The step's last one has been added to the bucket from element `begin` on, and `stream` is about to sum the bucket
  // over the ranks (BeforeSum). Every bucket must be measured.
  void measure_bucket(Vector& gradients, std::int64_t begin, std::uintptr_t stream);
  // Over the small batches of the step; with a loss scale, of its square. Waits for a device.
  double sum();
  // The same of each of the groups.
  std::vector<double> sums_of_groups();

 private:
  // The sum over all ranges, and that of each group.
  struct Sums {
    double all = 0;
    std::vector<double> of_groups = {};
    Sums& operator+=(const Sums& other);
  };

  void add_bucket(Backend& backend, ElementRange bucket, std::span<const ElementRange> tensors);
  void measure(RangeNorms& bucket, const Vector& gradients, std::uintptr_t stream);
  Sums measured();
  Sums sums();

  bool apart_;
  std::int64_t bucket_elements_, total_at_;
  std::vector<std::unique_ptr<RangeNorms>> buckets_;  // each is measured in a stream of its own; null: nothing in it
  std::vector<std::vector<std::size_t>> tensors_;     // of each bucket's ranges
  std::size_t tensor_count_;
  const NoiseGroups* groups_;
  std::unique_ptr<NormTotal> total_;  // null: nobody wants it among the gradients
  std::unique_ptr<Vector> before_;    // null: one small batch in a step
  std::int64_t batches_ = 0;          // of this step that have been measured
  TreeSum<Sums> earlier_;             // apart: of all small batches of the step but the last
};

}  // namespace ringtrain
