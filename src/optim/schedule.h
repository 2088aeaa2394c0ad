// What follows from the position and the batch of a step: the learning rate, and what the optimizer keeps constant when
// the batch changes: half-lives in samples, the time scale of weight decay, and the moments of Adam by its stochastic
// differential equation.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "config/batch_course.h"
#include "config/experiment.h"

namespace ringtrain {

// The units of a schedule. Its steps are steps of the batch with which the run begins.
struct ScheduleContext {
  std::int64_t global_batch = 0;
  std::int64_t steps_per_epoch = 0;
  std::int64_t total_steps = 0;  // 0: the end is not known (not allowed with polynomial and cosine)
  // The number of samples of an epoch if an epoch takes all its samples. steps_per_epoch is then rounded up. 0: an
  // epoch has whole batches only.
  std::int64_t whole_epoch = 0;

  std::int64_t samples_per_epoch() const { return whole_epoch > 0 ? whole_epoch : steps_per_epoch * global_batch; }
  // Returns the number of steps before a position, computed from the samples seen. It equals position.step if all
  // batches had the first batch's size.
  double steps(const Position& position) const {
    const auto whole = static_cast<double>(position.epoch * steps_per_epoch);
    const auto offset = static_cast<double>(position.offset);
    if (whole_epoch == 0) return whole + offset / static_cast<double>(global_batch);
    return whole + offset / static_cast<double>(whole_epoch) * static_cast<double>(steps_per_epoch);
  }
  // Returns the number of epochs before a position, with a fraction within an epoch.
  double epochs(const Position& position) const { return steps(position) / static_cast<double>(steps_per_epoch); }
  double epochs_of(std::int64_t step) const { return static_cast<double>(step) / static_cast<double>(steps_per_epoch); }
};

// Returns the learning rate of the update that begins after `step` steps (0 is the first update); context.steps()
// computes `step`. With k = global_batch / base_batch (1 if base_batch is 0), T_w = warmup_steps(), T = total_steps and
// E = steps_per_epoch (config/rate_scaling.h computes k and the peak):
//
//   peak      none: base; linear: base k (Goyal et al. 2017); sqrt: base sqrt k (Krizhevsky 2014);
//             legw: base sqrt k, with a warm-up of k times the epochs (You et al. 2019);
//             adam_sde: base sqrt k; optimizer_of() changes the optimizer's betas and epsilon (Malladi et al. 2022)
//   step < T_w    from + (peak - from) step / T_w, from = base or 0 (Goyal et al. 2017, section 2.2)
//   step >= T_w   constant      peak
//                 step          peak factor^m, m = milestones with round(milestone E) <= step, counted from step 0
//                 exponential   peak factor^((step - T_w) / E)
//                 polynomial    end + (peak - end) (1 - x)^power,          x = (step - T_w) / (T - T_w), at most 1
//                 cosine        end + (peak - end) (1 + cos(pi x)) / 2
//                 points        peak f(step), f through the points' factors at round(epoch E), counted from step 0:
//                               straight lines between them, constant outside; the second of two points at a step
//                               holds from that step on
//
// With every: epoch, all steps of an epoch have the rate of the epoch's first step. An epoch that begins in the warm-up
// has the rate at its end instead, but at most the peak: from + (peak - from) (e + 1) / (warm-up's epochs) in epoch e =
// 0, 1, ... The first epoch thus trains even if `from` is 0 (NVIDIA's DeepLearningExamples, lr_cosine_policy).
//
// A decay has exactly the rate `peak` at step T_w. It would reach exactly `end` at step T, which is one step after the
// last update. A run that continues after T stays at `end`.
// Throws Error if the schedule or the warm-up needs the length of an epoch or the end of the run and the context does
// not have it, if the schedule needs points but there are none, or if `step` is below 0.
double learning_rate(const LearningRateConfig& config, const ScheduleContext& context, double step);

// Returns the number of warm-up steps, T_w. It is config.warmup_steps if that is set. Otherwise it is warmup_epochs
// (legw: k x warmup_epochs) in steps, rounded. LEGW does not multiply warmup_steps by k: a batch k times as large makes
// 1/k as many steps per epoch, so k times the epochs are the same number of steps.
std::int64_t warmup_steps(const LearningRateConfig& config, const ScheduleContext& context);

// Returns the first step that has the rate after warm-up. With every: epoch it is the first step of the warm-up's last
// epoch, which already has the peak rate.
std::int64_t peak_step(const LearningRateConfig& config, const ScheduleContext& context);

// Returns the first step for which a milestone at `epoch` counts.
std::int64_t milestone_step(const LearningRateConfig& config, const ScheduleContext& context, double epoch);

struct LearningRateCorner {
  std::int64_t step;
  std::string what;  // "start of warm-up", "peak", "milestone, epoch 30" ...
};
// Returns the steps that a table of the schedule names, in order: the start and the end of the warm-up, each milestone
// or point, and one step within a decay. Some may come after the end of the run.
std::vector<LearningRateCorner> learning_rate_corners(const LearningRateConfig& config, const ScheduleContext& context);

// What the optimizer keeps constant when the batch changes.

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
