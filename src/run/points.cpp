#include "run/points.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/table.h"
#include "config/batch_course.h"
#include "run/course.h"

namespace ringtrain {
namespace {

// Epochs such as 0.3 are not exact in binary. The tolerance avoids choosing the step after the one that is meant.
bool has_passed(const RunPoint& point, const ScheduleContext& schedule, const Position& position) {
  if (point.in_steps) return static_cast<double>(position.step) >= point.at;
  return schedule.steps(position) + 1e-6 >= point.at * static_cast<double>(schedule.steps_per_epoch);
}

std::string place(const RunPlan& plan, const Position& position) {
  return cat("step ", with_thousands(position.step), " (epoch ", with_digits(plan.schedule.epochs(position)), ")");
}

}  // namespace

bool reaches(const RunPoint& point, const RunPlan& plan, const Position& before, const Position& position) {
  // Checkpoints do not store the step of `before`. A point in steps is therefore compared with `position` alone.
  if (point.in_steps) return static_cast<double>(position.step) == point.at;
  return has_passed(point, plan.schedule, position) && !has_passed(point, plan.schedule, before);
}

bool reaches_kept_point(const RunPlan& plan, const Position& before, const Position& position) {
  return std::ranges::any_of(plan.experiment.checkpoint.keep_at, [&](const RunPoint& point) {
    return position.step == 0 ? point.at == 0 : reaches(point, plan, before, position);
  });
}

bool all_meet_after(const RunPlan& plan, const Position& before, const Position& position) {
  const EvaluateConfig& e = plan.experiment.evaluate;
  const CheckpointConfig& c = plan.experiment.checkpoint;
  return has_all_steps(plan, position, 0) || reaches_kept_point(plan, before, position) ||
         due(c.every_epochs, c.every_steps, plan, before, position) ||
         (plan.has_validation && due(e.every_epochs, e.every_steps, plan, before, position, e.offset_epochs));
}

std::optional<Position> position_of(const RunPoint& point, const RunPlan& plan) {
  return position_of(point, plan.schedule, plan.course, plan.branch.position, plan.experiment.batch.follow_noise > 0);
}

std::optional<Position> position_of(const RunPoint& point, const ScheduleContext& schedule, const BatchCourse& course,
                                    const Position& begin, bool follows_noise) {
  if (has_passed(point, schedule, begin)) return begin;
  if (follows_noise) return std::nullopt;
  return course.first(begin, [&](const Position& p) { return has_passed(point, schedule, p); });
}

std::string describe_kept(const RunPlan& plan) {
  std::string text;
  for (const RunPoint& point : plan.experiment.checkpoint.keep_at) {
    const std::optional<Position> position = position_of(point, plan);
    text += cat(text.empty() ? "" : "; ", with_unit(point), ": ");
    if (has_passed(point, plan.schedule, plan.branch.position) && plan.branch.position.step > 0)
      text += "before the branch";
    else if (!position)
      text += "depending on the noise scale";
    else if (position->step > plan.branch.position.step && plan.updates > 0 && position->step > plan.updates)
      text += "after the end of the run";
    else
      text += place(plan, *position);
  }
  return text;
}

std::string describe_branch(const RunPlan& plan) {
  const BranchConfig& branch = plan.experiment.branch;
  return cat(branch.from, plan.branch.source == 0 ? " (which is not there yet)" : "", ", left after ",
             place(plan, plan.branch.position), " and ", with_thousands(plan.branch.position.samples),
             " samples: ", with_digits(branch.batch_factor), " x its batch, ", with_digits(branch.rate_factor),
             " x its rate", branch.samples > 0 ? cat(", for ", with_thousands(branch.samples), " samples") : "");
}

std::string describe_branch_stop(const RunPlan& plan) {
  const std::int64_t samples = plan.experiment.branch.samples;
  const std::string steps = cat(with_thousands(plan.updates - plan.branch.position.step),
                                " steps of its own, up to step ", with_thousands(plan.updates));
  if (samples == 0) return plan.updates > 0 ? "after " + steps : "";
  return cat("after ", with_thousands(samples), " samples of its own", plan.updates > 0 ? ", " + steps : "");
}

}  // namespace ringtrain
