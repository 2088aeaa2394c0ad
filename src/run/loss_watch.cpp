#include "run/loss_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/cat.h"
#include "base/json.h"
#include "base/table.h"
#include "run/record.h"

namespace ringtrain {
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

}  // namespace ringtrain
