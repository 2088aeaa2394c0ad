#include "run/run_end.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/cat.h"
#include "base/json.h"
#include "base/table.h"
#include "run/course.h"
#include "run/metrics.h"

namespace ringtrain {

std::optional<RunEnd> target_end(const StopConfig& stop, double validation_loss, double validation_accuracy) {
  const bool is_loss = stop.target_metric == "validation_loss",
             is_accuracy = stop.target_metric == "validation_accuracy";
  if (is_loss && validation_loss <= stop.target_value) return RunEnd{RunEnd::Cause::target, validation_loss};
  if (is_accuracy && validation_accuracy >= stop.target_value)
    return RunEnd{RunEnd::Cause::target, validation_accuracy};
  return std::nullopt;
}

std::optional<RunEnd> end_of(const RunPlan& plan, const RunProgress& progress) {
  const StopConfig& stop = plan.experiment.stop;
  if (progress.evaluated_step == progress.position.step)
    if (const auto reached = target_end(stop, progress.evaluated_loss, progress.evaluated_accuracy)) return reached;
  if (has_all_steps(plan, progress.position, progress.scale_invariant_steps)) return RunEnd{};
  if (stop.seconds > 0 && progress.elapsed_seconds >= stop.seconds) return RunEnd{RunEnd::Cause::seconds};
  return std::nullopt;
}

std::string end_word(const RunEnd& end, const StopConfig& stop) {
  switch (end.cause) {
    case RunEnd::Cause::target:
      return target_reached;
    case RunEnd::Cause::seconds:
      return "stop.seconds";
    case RunEnd::Cause::recorded_order:
      return "end of the recorded order";
    case RunEnd::Cause::all_steps:
      break;
  }
  return stop.target_metric.empty() ? "all steps done" : "target not reached";
}

std::string describe_end(const RunEnd& end, const StopConfig& stop) {
  const std::string value = with_digits(stop.target_value, 15);
  if (end.cause == RunEnd::Cause::target)
    return cat(stop.target_metric, " reached ", value, " (", with_digits(end.reached, 5), ")");
  std::string text;
  if (end.cause == RunEnd::Cause::seconds) text = "stop.seconds " + with_digits(stop.seconds, 15) + " is over";
  if (end.cause == RunEnd::Cause::recorded_order) text = "the recorded order of arrival ends here";
  if (stop.target_metric.empty()) return text;
  return cat(text, text.empty() ? "" : ", and ", "stop.target_value ", value, " was not reached");
}

namespace {

// In a shorter stretch, a somewhat higher loss may be chance.
constexpr std::int64_t steps_to_judge = 20, fewest_steps = 5;

// The number of updates is not known if the batch follows the noise scale, or with AdaScale.
RunLength run_length(const RunPlan& plan) {
  const StopConfig& stop = plan.experiment.stop;
  using Unit = RunLength::Unit;
  if (plan.updates > 0) return {Unit::steps, static_cast<double>(plan.updates - plan.branch.position.step)};
  if (stop.epochs > 0 && plan.adascale_times > 0) return {Unit::scale_invariant_epochs, stop.epochs};
  if (stop.epochs > 0)
    return {Unit::samples, stop.epochs * static_cast<double>(plan.samples_per_epoch) -
                               static_cast<double>(plan.branch.position.samples)};
  return {Unit::seconds, stop.seconds};
}

}  // namespace

double loss_of_guessing(const DatasetIndex& train) {
  const std::size_t words = train.is_image() ? train.image.class_ids.size() : train.text.vocabulary.size();
  return words > 0 ? std::log(static_cast<double>(words)) : 0;
}

bool ends_diverged(std::span<const double> losses, std::int64_t first_step, double guessing) {
  if (losses.size() < 2) return false;
  const std::span<const double> last = losses.last(std::max<std::size_t>(1, losses.size() / 20));
  const double mean = std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(last.size());
  const bool may_be_chance = std::ssize(losses) < steps_to_judge || first_step > 1;
  return !(mean <= std::max(losses.front() * (may_be_chance ? 2 : 1), guessing));
}

LossWatch::LossWatch(double share, RunLength length, double guessing)
    : share_(share), length_(length), guessing_(guessing) {}

LossWatch::LossWatch(const RunPlan& plan)
    : LossWatch(plan.experiment.stop.diverged_share, run_length(plan), loss_of_guessing(plan.train)) {}

void LossWatch::read(const std::string& run_dir) {
  if (share_ == 0 || length_.total <= 0) return;
  for_each_record(run_dir, [this](const Json& record) {
    const auto number = [&](const char* key) { return real_in(value_or_null(record, key)); };
    const auto integer = [&](const char* key) {
      return integer_in<std::int64_t>(value_or_null(record, key)).value_or(0);
    };
    const std::optional<double> loss = number("loss");
    if (!loss) return;  // an evaluation
    add({.step = integer("step"),
         .samples = integer("samples"),
         .elapsed_seconds = number("elapsed_seconds").value_or(0),
         .scale_invariant_epoch = number("scale_invariant_epoch").value_or(0)},
        *loss);
  });
}

double LossWatch::measure(const LossPlace& place) const {
  switch (length_.unit) {
    case RunLength::Unit::steps:
      return static_cast<double>(place.step);
    case RunLength::Unit::samples:
      return static_cast<double>(place.samples);
    case RunLength::Unit::scale_invariant_epochs:
      return place.scale_invariant_epoch;
    case RunLength::Unit::seconds:
      break;
  }
  return place.elapsed_seconds;
}

bool LossWatch::is_long(const Stretch& stretch, double now, std::int64_t least_steps) const {
  return stretch.steps >= least_steps && now - stretch.since >= share_ * length_.total;
}

void LossWatch::add(const LossPlace& place, double loss) {
  if (share_ == 0 || length_.total <= 0) return;
  const double now = measure(place);
  if (!first_) {
    first_ = loss;
    begins_trained_ = place.step > 1;
  }
  const auto extend = [&](Stretch& stretch, double bound) {
    stretch = loss > std::max(bound, guessing_) ? Stretch{stretch.since, stretch.steps + 1} : Stretch{now, 0};
  };
  extend(above_first_, *first_);
  extend(above_twice_, 2 * *first_);
  diverged_ =
      (!begins_trained_ && is_long(above_first_, now, steps_to_judge)) || is_long(above_twice_, now, fewest_steps);
}

std::string LossWatch::describe() const {
  const bool once = !begins_trained_ && above_first_.steps >= steps_to_judge;
  const double bound = once ? *first_ : 2 * *first_;
  return cat("the loss of each of the last ", with_thousands(once ? above_first_.steps : above_twice_.steps),
             " steps is above ",
             bound < guessing_ ? cat("that of guessing (", with_digits(guessing_))
                               : cat(once ? "" : "twice ", "that of the first step (", with_digits(*first_)),
             "): the run has diverged");
}

namespace {

// The default of Slurm's KillWait: the time between SIGTERM (at the time limit, or at a preemption without grace time)
// and SIGKILL.
constexpr int kUsualKillWait = 30;

std::string seconds_text(double seconds) {
  return printed(seconds < 10 ? "%.2g s" : "%.0f s", seconds);
}

}  // namespace

int lead_seconds(const StopCost& cost) {
  const double needed = 2 * (cost.checkpoint.seconds + 2 * cost.step_seconds) + 10;
  return 10 * static_cast<int>(std::ceil(needed / 10));
}

std::string describe(const StopCost& cost, bool is_new, bool in_slurm) {
  const bool knows_steps = cost.step_seconds > 0;
  const int lead = lead_seconds(cost);
  const std::string stop =
      cat("to stop, this run needs the time of two steps", knows_steps ? " of " + seconds_text(cost.step_seconds) : "",
          " and of a checkpoint (", readable_bytes(cost.checkpoint.bytes), " in ",
          seconds_text(cost.checkpoint.seconds), is_new ? ", measured now)" : ", measured in an earlier start)");
  if (!in_slurm) return stop;
  return cat(stop, ". To stop in time, this job needs --signal=USR1@", lead, " or more",
             knows_steps ? "" : "; add four times the seconds of a step, which is not measured yet",
             lead > kUsualKillWait ? cat(". SIGTERM alone usually leaves only ", kUsualKillWait, " s") : "");
}

}  // namespace ringtrain
