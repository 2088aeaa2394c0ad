// What the optimizer keeps constant when the batch changes: half-lives in samples, the time scale of weight decay, and
// the moments of Adam by its stochastic differential equation.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "backend/backend.h"
#include "config/experiment.h"
#include "optim/learning_rate.h"

namespace ringtrain {

// Returns the factor of a step of `samples` samples with this half-life in samples, 2^(-samples / half_life). Marek et
// al. 2025 (arXiv:2507.07101) propose it for beta2. Without a half-life (0), it is `plain`.
double step_factor(double plain, double half_life, double samples);
// Returns 1 - step_factor(), with all digits even if the factor is 1 to the last one.
double step_share(double plain, double half_life, double samples);
// Returns the half-life in samples of a factor in (0, 1) per step of `samples` samples.
double half_life_of(double factor, double samples);

// Returns the optimizer of the experiment. With learning_rate.scaling: adam_sde and k = context.global_batch /
// base_batch, it has other betas and another epsilon (Malladi et al. 2022, arXiv:2205.10287):
//
//   1 - beta' = k (1 - beta),    epsilon' = epsilon / sqrt k
//
// The context is that of learning_rate(). In a branch it is that of the run which the branch leaves.
OptimizerConfig optimizer_of(const Experiment& experiment, const ScheduleContext& context);

// Returns the factor of optimizer.weight_decay in a step of `samples` samples. `rate_factor` is
// BatchStage::rate_factor. With weight_decay_by: step it is 1. With sample, it keeps the decay's time scale in samples,
// B / (rate x decay) (Wang and Aitchison 2024, arXiv:2405.13698; Bergsma et al. 2025, arXiv:2505.13738):
//
//   (B / reference batch) x (base / (peak x rate_factor))
//
// The reference batch is learning_rate.base_batch, for which `base` was chosen. If that is 0, it is the first batch of
// the run.
double decay_factor(const Experiment& experiment, const ScheduleContext& context, double samples, double rate_factor);

// Returns whether optimizer.weight_decay acts on the weights by itself, so that it has a time scale of 1 / (rate x
// decay) steps.
bool decouples_decay(const OptimizerConfig& optimizer);

// The state that AdaScale SGD keeps between steps: its averages, and how far the schedule has advanced.
class AdaScale {
 public:
  // `times` is S = batch / base batch, at least 1. `batch` and `small_batch` are numbers of samples. At S = 1 nothing
  // is measured.
  AdaScale(double times, double batch, double small_batch) : times_(times), batch_(batch), small_batch_(small_batch) {}

  bool measures() const { return times_ > 1; }
  // Returns the scale-invariant steps so far (tau). Each applied update counts by its gain.
  double steps() const { return state_[tau]; }
  // Returns the input for the next update. It is empty if S is 1, because every gain is then 1. See AdaScaleStep for
  // `small_norms`.
  std::optional<AdaScaleStep> next(std::int64_t small_norms) const {
    if (!measures()) return std::nullopt;
    return AdaScaleStep{.times = times_,
                        .batch = batch_,
                        .small_batch = small_batch_,
                        .averages = {state_[variance], state_[gradient], state_[count]},
                        .small_norms = small_norms};
  }
  // Call this after the update. A skipped update changes nothing.
  void add(const UpdateResult& result) {
    if (!result.applied) return;
    state_ = {state_[tau] + result.gain, result.adascale.variance, result.adascale.gradient, result.adascale.steps};
  }

  // The state that checkpoints store.
  static constexpr std::array<std::string_view, 4> state_names = {"scale_invariant_steps", "adascale_variance",
                                                                  "adascale_gradient", "adascale_steps"};
  using State = std::array<double, state_names.size()>;
  const State& state() const { return state_; }
  void resume(const State& state) { state_ = state; }

 private:
  enum Place { tau, variance, gradient, count };
  double times_, batch_, small_batch_;
  State state_{};
};

}  // namespace ringtrain
