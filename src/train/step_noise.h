// The noise of a trainer's gradients: which steps measure it, what they have measured, and what follows from it for the
// batch (batch.follow_noise) and for the learning rate (AdaScale).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "optim/noise_scale.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "run/fixed_order.h"
#include "run/plan.h"
#include "run/reports.h"

namespace ringtrain {

// Squared norms of the gradients of a step's small batches on one rank. The gradient noise scale (optim/noise_scale.h)
// compares them with the norm of the whole batch.
//
// The passes of a step add to one gradient vector. If a rank has several small batches in a step, a second vector keeps
// the gradient from before each small batch, and the norm of the difference is measured. Measuring thus changes neither
// the order of the additions nor the bits of the gradient. In a fixed order (communication.order) the gradient of each
// small batch is a node of a tree and is measured directly. The norms are then added in the same tree.
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
  // The sum over all ranges, and the sum over each group.
  struct Sums {
    double all = 0;
    std::vector<double> of_groups = {};
    Sums& operator+=(const Sums& other);
  };
  // Returns the sums over the small batches of the step. They include the square of the loss scale. Waits for a device.
  Sums sums();

 private:
  void add_bucket(Backend& backend, ElementRange bucket, std::span<const ElementRange> tensors);
  void measure(RangeNorms& bucket, const Vector& gradients, std::uintptr_t stream);
  Sums measured();

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

// The numbers that are kept from step to step. The defaults are those of a run that begins.
struct NoiseState {
  NoiseScale::State noise{};
  std::map<std::string, NoiseScale::State> noise_groups;  // by name; empty: noise.groups is off
  AdaScale::State adascale{};
  std::int64_t batch_small_since = NoiseFollower::not_small;
};

class StepNoise {
 public:
  // `part` holds the parameters of this rank, which `optimizer` updates.
  StepNoise(const RunPlan& plan, Backend& backend, const ParameterTable& part, Optimizer& optimizer);

  void save(NoiseState& state) const;
  void resume(const NoiseState& state);

  // Returns whether a step of `samples` samples measures the noise. It ends at `next`.
  bool measures(std::int64_t samples, const Position& next) const;
  // Returns whether the noise scale of this step may change the batch of the next step. The answer must be known before
  // the noise scale is known, so that no pass with a wrong batch begins.
  bool may_change_batch(std::int64_t batch, std::int64_t samples, const Position& next) const {
    return measures(samples, next) && follower_.may_double(batch, next.samples);
  }
  // Returns the batch of the next step, which begins after `samples` samples of the run. `report` is that of a step of
  // `batch` samples.
  std::int64_t next_batch(std::int64_t batch, const StepReport& report, std::int64_t samples);

  // Returns the sums over this rank's small batches in this step. They are zeros if the step does not measure the
  // noise. Waits for a device if it does.
  SmallBatchNorms::Sums small_norm_sums(bool measures);
  // Adds a step with a finite gradient to the averages, after Optimizer::finish_update(). `small_norms` are
  // small_norm_sums() of all ranks. `targets` are those of its global batch, and `samples` those of the run, including
  // this step. `is_rest`: the step is an epoch's smaller last batch.
  NoiseReport add(const StepReport& report, const SmallBatchNorms::Sums& small_norms, std::int64_t targets,
                  std::int64_t samples, bool is_rest);

  // Returns AdaScale's count of steps; 0 without AdaScale.
  double scale_invariant_steps() const { return adascale_ ? adascale_->steps() : 0; }
  // Returns AdaScale's input for the next update. See AdaScaleStep for `small_norms`.
  std::optional<AdaScaleStep> next_gain(std::int64_t small_norms) const {
    return adascale_ ? adascale_->next(small_norms) : std::nullopt;
  }
  // Adds AdaScale's gain of an update to the report.
  void note_gain(StepReport& report, const UpdateResult& result);

  SmallBatchNorms* small_norms() { return small_norms_ ? &*small_norms_ : nullptr; }  // null: no step measures
  const NoiseScale& scale() const { return scale_; }
  const std::optional<NoiseGroups>& groups() const { return groups_; }  // empty: noise.groups is off

 private:
  void add_groups(const NoiseScale::Step& whole, double small_batch, std::vector<double> small_norms, double scale);

  const RunPlan& plan_;
  Optimizer& optimizer_;
  NoiseScale scale_;
  std::optional<NoiseGroups> groups_;
  std::optional<AdaScale> adascale_;
  NoiseFollower follower_;
  std::optional<SmallBatchNorms> small_norms_;
};

}  // namespace ringtrain
