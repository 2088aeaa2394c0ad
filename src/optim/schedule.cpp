#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/rounding.h"
#include "config/rate_scaling.h"

namespace ringtrain {
namespace {

std::int64_t epochs_to_steps(double epochs, const ScheduleContext& context) {
  if (context.steps_per_epoch < 1)
    throw Error(cat("the learning rate needs at least 1 step per epoch, got ", context.steps_per_epoch));
  constexpr double limit = 4e18;  // below the largest int64
  return std::llround(std::min(limit, epochs * static_cast<double>(context.steps_per_epoch)));
}

// Returns the rate between `peak` and `end`. x is the finished share of the steps from the end of the warm-up to the
// end of the run.
double decayed_to_end(const LearningRateConfig& config, double peak, double x) {
  if (x <= 0) return peak;
  if (x >= 1) return config.end;
  const double share =
      config.schedule == "cosine" ? (1 + std::cos(std::numbers::pi * x)) / 2 : std::pow(1 - x, config.power);
  return config.end + (peak - config.end) * share;
}

// Returns the factor of `step`. The points are rounded to steps in the same way as milestones. Two points at the same
// step make a jump, and the second one counts.
double factor_at(const std::vector<EpochFactor>& points, const ScheduleContext& context, double step) {
  if (points.empty()) throw Error("learning_rate.schedule points needs learning_rate.points");
  const auto at = [&context](const EpochFactor& p) { return static_cast<double>(epochs_to_steps(p.epoch, context)); };
  const auto next = std::find_if(points.begin(), points.end(), [&](const EpochFactor& p) { return at(p) > step; });
  if (next == points.begin()) return points.front().factor;
  const EpochFactor& last = *std::prev(next);
  if (next == points.end()) return last.factor;
  return last.factor + (next->factor - last.factor) * (step - at(last)) / (at(*next) - at(last));
}

// The step at which the schedule is evaluated, and the step at which its warm-up is evaluated. They are different with
// learning_rate.every: epoch only.
struct Places {
  double step, in_warmup;
};
Places places(const LearningRateConfig& config, const ScheduleContext& context, double step) {
  if (config.every != "epoch") return {step, step};
  if (context.steps_per_epoch < 1) throw Error("learning_rate.every: epoch needs the number of steps per epoch");
  const auto epoch = static_cast<double>(context.steps_per_epoch);
  const double begin = std::floor(step / epoch) * epoch;
  return {begin, begin + epoch};
}

// Returns the first step at or after `step` that may have another rate than the step before it.
std::int64_t from_step(const LearningRateConfig& config, const ScheduleContext& context, std::int64_t step) {
  const std::int64_t epoch = context.steps_per_epoch;
  return config.every == "epoch" ? round_up(step, epoch) : step;
}

}  // namespace

std::int64_t warmup_steps(const LearningRateConfig& config, const ScheduleContext& context) {
  if (config.warmup_steps > 0) return config.warmup_steps;
  if (config.warmup_epochs <= 0) return 0;
  return epochs_to_steps(warmup_epochs(config, context.global_batch), context);
}

double learning_rate(const LearningRateConfig& config, const ScheduleContext& context, double step) {
  if (step < 0) throw Error(cat("the learning rate of step ", step, " was asked for; steps count from 0"));
  const double peak = peak_rate(config, context.global_batch);
  const auto warmup_end = static_cast<double>(warmup_steps(config, context));
  const Places place = places(config, context, step);
  if (place.step < warmup_end) {
    const double from = config.warmup_from == "zero" ? 0 : config.base;
    return from + (peak - from) * std::min(1.0, place.in_warmup / warmup_end);
  }
  step = place.step;
  const double after_warmup = step - warmup_end;
  if (config.schedule == "constant") return peak;
  if (config.schedule == "step") {
    const auto passed = std::count_if(config.milestones.begin(), config.milestones.end(), [&](double milestone) {
      return static_cast<double>(epochs_to_steps(milestone, context)) <= step;
    });
    return peak * std::pow(config.factor, static_cast<double>(passed));
  }
  if (config.schedule == "points") return peak * factor_at(config.points, context, step);
  if (config.schedule == "exponential") {
    if (context.steps_per_epoch < 1) throw Error("the exponential schedule needs the number of steps per epoch");
    return peak * std::pow(config.factor, after_warmup / static_cast<double>(context.steps_per_epoch));
  }
  if (decays_to_end(config)) {
    if (context.total_steps < 1)
      throw Error(cat("learning_rate.schedule ", config.schedule, " needs the number of steps of the run"),
                  "Give stop.epochs or stop.steps.");
    const auto total = static_cast<double>(context.total_steps);
    if (step >= total) return config.end;
    return decayed_to_end(config, peak, after_warmup / (total - warmup_end));
  }
  throw Error(cat("learning_rate.schedule '", config.schedule, "' is not known"));
}

std::int64_t peak_step(const LearningRateConfig& config, const ScheduleContext& context) {
  const std::int64_t warmup = warmup_steps(config, context);
  if (config.every != "epoch") return warmup;
  return from_step(config, context, std::max<std::int64_t>(0, warmup - context.steps_per_epoch));
}

std::int64_t milestone_step(const LearningRateConfig& config, const ScheduleContext& context, double epoch) {
  return from_step(config, context, std::max(warmup_steps(config, context), epochs_to_steps(epoch, context)));
}

std::vector<LearningRateCorner> learning_rate_corners(const LearningRateConfig& config,
                                                      const ScheduleContext& context) {
  const std::int64_t warmup = warmup_steps(config, context), peak = peak_step(config, context);
  const std::int64_t total = context.total_steps;
  std::vector<LearningRateCorner> corners;
  const auto add = [&](std::int64_t step, std::string what) {
    corners.push_back({from_step(config, context, step), std::move(what)});
  };
  const bool has_peak =
      config.schedule != "points" && (config.schedule != "step" || config.milestones.empty() ||
                                      milestone_step(config, context, config.milestones.front()) > peak);
  if (warmup > 0) add(0, "start of warm-up");
  add(peak, warmup > 0 ? has_peak ? "peak" : "end of warm-up" : config.schedule == "constant" ? "constant" : "start");
  if (config.schedule == "step")
    for (const double milestone : config.milestones)
      add(milestone_step(config, context, milestone), cat("milestone, epoch ", milestone));
  if (config.schedule == "points")
    for (const EpochFactor& p : config.points)
      if (const std::int64_t step = epochs_to_steps(p.epoch, context); corners.back().step < step)
        add(step, cat("point, epoch ", p.epoch));
  if (config.schedule == "exponential") add(warmup + context.steps_per_epoch, "one epoch of decay");
  if (decays_to_end(config) && total > warmup) add(warmup + (total - warmup) / 2, "half of the decay");
  return corners;
}

double step_factor(double plain, double half_life, double samples) {
  return half_life > 0 ? std::exp2(-samples / half_life) : plain;
}

double step_share(double plain, double half_life, double samples) {
  return half_life > 0 ? -std::expm1(-std::numbers::ln2 * samples / half_life) : 1 - plain;
}

double half_life_of(double factor, double samples) {
  return -samples / std::log2(factor);
}

OptimizerConfig optimizer_of(const Experiment& e, const ScheduleContext& context) {
  OptimizerConfig optimizer = e.optimizer;
  if (e.learning_rate.scaling != "adam_sde") return optimizer;
  const double k = batch_ratio(e.learning_rate, context.global_batch);
  optimizer.beta1 = 1 - k * (1 - optimizer.beta1);
  optimizer.beta2 = 1 - k * (1 - optimizer.beta2);
  optimizer.epsilon /= std::sqrt(k);
  return optimizer;
}

double decay_factor(const Experiment& e, const ScheduleContext& context, double samples, double rate_factor) {
  if (e.optimizer.weight_decay_by != "sample") return 1;
  const std::int64_t base_batch = e.learning_rate.base_batch;
  const auto reference = static_cast<double>(base_batch > 0 ? base_batch : context.global_batch);
  return samples / reference * e.learning_rate.base / (peak_rate(e.learning_rate, context.global_batch) * rate_factor);
}

bool decouples_decay(const OptimizerConfig& optimizer) {
  return optimizer.kind == "adamw" || (optimizer.kind == "muon" && optimizer.other_kind == "adamw");
}

}  // namespace ringtrain
