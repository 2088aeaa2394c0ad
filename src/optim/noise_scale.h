// The gradient noise scale, measured from gradients that every step computes anyway.
//
// Let G be the gradient of the loss over the population. Let Sigma be the covariance matrix of one sample's gradient. A
// batch of B samples has E|G_B|^2 = |G|^2 + tr(Sigma) / B. A step knows |G_B|^2 for its global batch and for its small
// batches. These are two equations for |G|^2 and tr(Sigma). The ratio tr(Sigma) / |G|^2 is the noise scale B_simple. At
// this batch, noise and gradient are equally large. Source: McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/parameters.h"

namespace ringtrain {

// The input of an estimate. Gradients are means over samples, before clipping and weight decay, with the loss scale
// removed.
struct NoiseMeasurement {
  std::int64_t batch = 0;         // B: samples of the step
  double small_batch = 0;         // b: samples of each small batch, less than B
  double squared_norm = 0;        // |G_B|^2
  double small_squared_norm = 0;  // |G_b|^2, the mean over all small batches of the step
};
// Returns the effective b of a batch whose last small batch may be smaller than the others: sum of b_i^2 / B. The mean
// of |G_b|^2, weighted by b_i^2, then has the expectation |G|^2 + tr(Sigma) / b.
double mean_small_batch(std::int64_t batch, std::int64_t small_batch);

// Unbiased estimates. A single estimate is noisy, and `gradient` may be negative. Nothing is clamped.
struct NoiseEstimate {
  double trace = 0;     // an estimate of tr(Sigma), per sample
  double gradient = 0;  // an estimate of |G|^2
};
NoiseEstimate estimate_noise(const NoiseMeasurement& m);

// A noise scale in samples, with its 95 % interval. A missing end means that the interval is unbounded there, or that
// there were too few steps.
struct NoiseRatio {
  double value = 0;
  std::optional<double> low, high;
};

// Averages over the steps of a run. The trace and the gradient are averaged separately and divided afterwards, because
// a mean of ratios has no finite expectation. A step's weight is its number of samples. The weight halves after every
// `half_life` further samples. The averages are divided by the sum of the weights, so the first steps need no other
// correction.
class NoiseScale {
 public:
  // `half_life` is in samples and must be above 0.
  explicit NoiseScale(double half_life) : half_life_(half_life) {}

  struct Step {
    NoiseEstimate estimate;
    std::int64_t samples = 0;      // samples of the run, including this step
    std::int64_t batch = 0;        // batch of this step
    std::int64_t small_batch = 0;  // small batch of the estimate
    double learning_rate = 0;
    double targets_per_sample = 1;  // targets that counted in the loss; text: characters per sequence
    bool is_rest = false;           // whether this is the smaller last batch of an epoch
  };
  void add(const Step& step);

  bool empty() const { return state_[weight] == 0; }
  // mean(), ratio() and targets_per_sample() need !empty().
  NoiseEstimate mean() const { return {.trace = average(trace), .gradient = average(gradient)}; }
  NoiseRatio ratio() const;                                       // in samples
  double targets_per_sample() const { return average(targets); }  // averaged in the same way
  // Returns the difference between the newest step and the step before it, which still counts in the averages. "batch"
  // is a change of the global or small batch (not the smaller last batch of an epoch). "rate" is a change of more than
  // a tenth. "batch and rate" is both. "" is no change.
  const std::string& change() const { return change_; }

  // The state that checkpoints store.
  static constexpr std::array<std::string_view, 12> state_names = {"noise_weight",
                                                                   "noise_squared_weight",
                                                                   "noise_trace",
                                                                   "noise_gradient",
                                                                   "noise_trace_trace",
                                                                   "noise_trace_gradient",
                                                                   "noise_gradient_gradient",
                                                                   "noise_targets",
                                                                   "noise_samples",
                                                                   "noise_batch",
                                                                   "noise_small_batch",
                                                                   "noise_rate"};
  using State = std::array<double, state_names.size()>;
  const State& state() const { return state_; }
  void resume(const State& state) { state_ = state; }

 private:
  // The first eight are sums over steps: the sum of the weights, the sum of their squares, and sums of weight x the
  // named value.
  enum Place {
    weight,
    squared_weight,
    trace,
    gradient,
    trace_trace,
    trace_gradient,
    gradient_gradient,
    targets,
    samples,
    batch,
    small_batch,
    rate
  };
  double average(Place of) const { return state_[of] / state_[weight]; }

  double half_life_;
  State state_{};
  std::string change_;
};

// Returns the number of steps at `batch` that one step at `times` x `batch` is worth. This is r_S of AdaScale (Johnson
// et al. 2020) for S = `times`, computed from the noise scale in samples. gain / times is the share of the larger
// batch's samples that is not wasted (EFFICIENCY of Pollux, Qiao et al. 2021).
double gain(double noise_scale, double batch, double times);

// Returns the two estimates for the loss over a training set of `samples` samples, which are drawn without replacement.
// The squared gradient of that loss is larger than the population's: |G|^2 + tr(Sigma) / samples.
NoiseEstimate of_training_set(const NoiseEstimate& population, std::int64_t samples);

// Decides when the batch doubles because of the gradient noise scale (batch.follow_noise). The batch counts as small
// while it is less than `multiple` x the noise scale. With `multiple` = 1, a slightly larger batch then saves a
// larger share of the steps than it adds to the samples (McCandlish et al. 2018, arXiv:1812.06162, section 2.3). The
// comparison uses the lower bound of the scale, so that noise in the estimate alone does not double the batch. Every
// rank has the same averages, so all ranks make the same decision.
class NoiseFollower {
 public:
  // The batch must have been small for `patience` samples. `largest` is the largest batch allowed.
  NoiseFollower(double multiple, std::int64_t patience, std::int64_t largest)
      : multiple_(multiple), patience_(patience), largest_(largest) {}

  // Returns whether a step that measures the noise and ends after `samples` samples of the run can double `batch`, for
  // some result of its measurement.
  bool may_double(std::int64_t batch, std::int64_t samples) const;
  // Call this after a step that measured the noise. Returns the new batch, which is `batch` or twice `batch`.
  std::int64_t next(std::int64_t batch, const NoiseRatio& scale, std::int64_t samples);

  // For checkpoints: the samples of the run at the first of the consecutive steps that found the batch small.
  static constexpr std::int64_t not_small = -1;
  std::int64_t small_since() const { return small_since_; }
  void resume(std::int64_t small_since) { small_since_ = small_since; }

 private:
  double multiple_;
  std::int64_t patience_, largest_;
  std::int64_t small_since_ = not_small;
};

// The noise scales of the parts of a model. A part is a kind of parameter or a single tensor (noise.groups). tr(Sigma)
// and |G|^2 are sums over elements. The values of the parts therefore add up to the values of the whole model.
class NoiseGroups {
 public:
  // `by` is kind or tensor. The trained tensors are grouped by it. `half_life` is the half-life of NoiseScale.
  NoiseGroups(const ParameterTable& parameters, const std::string& by, double half_life);

  std::size_t size() const { return names_.size(); }
  const std::string& name(std::size_t group) const { return names_[group]; }  // such as "norm" or "conv1.weight"
  const NoiseScale& scale(std::size_t group) const { return scales_[group]; }
  NoiseScale& scale(std::size_t group) { return scales_[group]; }

  // Sums the values of each group's tensors. `by_tensor` has one value per trained tensor, in the order of the table.
  // Returns [size()] sums.
  std::vector<double> by_group(std::span<const double> by_tensor) const;
  // Adds a step. `whole` describes the step; its estimate is replaced for each group by an estimate from the group's
  // two squared norms. `small_batch` and the norms are as in NoiseMeasurement, with the loss scale removed.
  void add(const NoiseScale::Step& whole, double small_batch, std::span<const double> squared_norms,
           std::span<const double> small_squared_norms);

 private:
  std::vector<std::string> names_;
  std::vector<std::size_t> group_of_;  // the group of each trained tensor
  std::vector<NoiseScale> scales_;
};

// ---- The summary at the end of a run, and the prediction for other batches

// The noise scale of a group of parameters (noise.groups): its share of tr(Sigma) and |G|^2, and their ratio.
struct NoiseOfGroup {
  std::string name;
  NoiseEstimate mean;
  NoiseRatio scale;
};

struct NoiseSummary {
  NoiseEstimate mean;                                // averages at the last step
  NoiseRatio scale;                                  // the ratio of the averages, in samples
  std::int64_t batch = 0;                            // batch of the last step
  std::int64_t training_samples = 0;                 // size of the training set
  std::optional<double> characters_per_sample = {};  // text only
  std::vector<NoiseOfGroup> groups = {};             // empty: noise.groups is off

  // Returns the noise scale, in samples, for the loss over the training set; see of_training_set().
  double scale_of_training_set() const;
};

// One step at `batch` makes as much progress as `gain` steps at the run's own batch. One sample of that step makes
// `efficiency` times as much progress as one sample at the run's own batch.
struct PredictedBatch {
  std::int64_t batch = 0;
  double gain = 0, efficiency = 0;
};
// Returns predictions from a quarter of the run's batch to 64 times the batch, in powers of two. Batches that are not
// whole numbers are left out. The result is empty if the noise scale is not finite or not above 0, because the noise
// then hides the average gradient.
std::vector<PredictedBatch> predicted_batches(const NoiseSummary& summary);

// Returns the table for the log.
std::string describe(const NoiseSummary& summary);

}  // namespace ringtrain
