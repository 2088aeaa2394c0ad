// The noise of a trainer's gradients: which steps measure it, what they have measured, and what follows from it for the
// batch (batch.follow_noise) and for the learning rate (AdaScale).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optim/batch_rules.h"
#include "optim/noise_scale.h"
#include "optim/optimizer.h"
#include "run/plan.h"
#include "run/step_report.h"

namespace ringtrain {

// The numbers that are kept from step to step. The defaults are those of a run that begins.
struct NoiseState {
  NoiseScale::State noise{};
  std::map<std::string, NoiseScale::State> noise_groups;  // by name; empty: noise.groups is off
  AdaScale::State adascale{};
  std::int64_t batch_small_since = NoiseFollower::not_small;
};

class StepNoise {
 public:
  explicit StepNoise(const RunPlan& plan);

  // Returns the names of the groups with the state of a run that begins.
  std::map<std::string, NoiseScale::State> fresh_groups() const;
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

  // The values of a measured step, in addition to its report.
  struct Measured {
    std::int64_t targets = 0;                 // of the global batch
    std::int64_t samples = 0;                 // of the run, including this step
    bool is_rest = false;                     // whether this is the smaller last batch of an epoch
    std::vector<double> gradient_norms = {};  // Optimizer::gradient_norms(); only for noise.groups
  };
  // Adds a step with a finite gradient to the averages.
  NoiseReport add(const StepReport& report, const StepCounters& counters, const Measured& step);

  // Returns AdaScale's count of steps; 0 without AdaScale.
  double scale_invariant_steps() const { return adascale_ ? adascale_->steps() : 0; }
  // Returns AdaScale's input for the next update. See AdaScaleStep for `small_norms`.
  std::optional<AdaScaleStep> next_gain(std::int64_t small_norms) const {
    return adascale_ ? adascale_->next(small_norms) : std::nullopt;
  }
  // Adds AdaScale's gain of an update to the report.
  void note_gain(StepReport& report, const UpdateResult& result);

  const NoiseScale& scale() const { return scale_; }
  const std::optional<NoiseGroups>& groups() const { return groups_; }   // empty: noise.groups is off
  const std::optional<AdaScale>& adascale() const { return adascale_; }  // empty: AdaScale is off

 private:
  std::vector<std::pair<std::string, double>> scales_of_kinds() const;
  void add_groups(const NoiseScale::Step& whole, double small_batch, const StepCounters& counters, double scale,
                  std::span<const double> gradient_norms);

  const RunPlan& plan_;
  NoiseScale scale_;
  std::optional<NoiseGroups> groups_;
  std::optional<AdaScale> adascale_;
  NoiseFollower follower_;
};

}  // namespace ringtrain
