// Squared norms of the gradients of a step's small batches on one rank. The gradient noise scale (optim/noise_scale.h)
// compares them with the norm of the whole batch.
//
// The passes of a step add to one gradient vector. If a rank has several small batches in a step, a second vector keeps
// the gradient from before each small batch, and the norm of the difference is measured. Measuring thus changes neither
// the order of the additions nor the bits of the gradient. In a fixed order (communication.order) the gradient of each
// small batch is a node of a tree and is measured directly. The norms are then added in the same tree.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/tree_sum.h"
#include "optim/noise_scale.h"

namespace ringtrain {

class SmallBatchNorms {
 public:
  // Measures elements [0, trained) of the gradient.
  //
  // `bucket_elements` is the size of the buckets that are summed over the ranks. `per_step` is the number of small
  // batches of this rank in a step. `total_at` is an element of the gradient vector after all elements that the passes
  // write. The sum of the norms is stored there too, so that the last bucket sums it over the ranks. 0: it is not
  // stored. If `apart` is true, measure() is given the gradient of each small batch alone. `groups` are the groups of
  // the tensors that are measured separately; `tensors` are ascending ranges. null: a bucket is measured as a whole.
  SmallBatchNorms(Backend& backend, std::int64_t trained, std::int64_t bucket_elements, std::int64_t per_step,
                  std::int64_t total_at, bool apart, const NoiseGroups* groups, std::span<const ElementRange> tensors);

  void begin();  // begins a step
  // Call this after a small batch that is not the last one of the step. `gradients` includes that small batch. If
  // `apart` is true, `gradients` is the gradient of that small batch alone.
  void measure(Vector& gradients);
  // Call this after the step's last small batch, for the bucket that begins at element `begin`, just before `stream`
  // sums the bucket over the ranks (BeforeSum). Every bucket must be measured.
  void measure_bucket(Vector& gradients, std::int64_t begin, std::uintptr_t stream);
  // Returns the sum over the small batches of the step. It includes the square of the loss scale. Waits for a device.
  double sum();
  // Like sum(), but one sum for each group of tensors.
  std::vector<double> sums_of_groups();

 private:
  // The sum over all ranges, and the sum over each group.
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
  std::vector<std::unique_ptr<RangeNorms>> buckets_;  // one for each bucket; null: the bucket has nothing to measure
  std::vector<std::vector<std::size_t>> tensors_;     // the tensors of each bucket's ranges
  std::size_t tensor_count_;
  const NoiseGroups* groups_;
  std::unique_ptr<NormTotal> total_;  // null: the sum is not stored in the gradient vector
  std::unique_ptr<Vector> before_;    // null: one small batch in a step, or apart_ is true
  std::int64_t batches_ = 0;          // small batches of this step that were measured
  TreeSum<Sums> earlier_;             // if apart_ is true: all small batches of the step but the last
};

}  // namespace ringtrain
