// The learning rate, as a pure function of the run's position.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace ringtrain
