#include "run/course.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "config/branch.h"
#include "optim/batch_rules.h"
#include "run/adascale_plan.h"
#include "run/points.h"

namespace ringtrain {
namespace {

// Returns the number of steps that stop.epochs asks for, in steps of the schedule. 0: stop.epochs is not given.
std::int64_t last_step_of_epochs(const RunPlan& plan) {
  StopConfig stop = plan.experiment.stop;
  stop.steps = 0;
  return total_steps(stop, plan.schedule.steps_per_epoch);
}

bool has_end(const RunPlan& plan) {
  return plan.experiment.stop.epochs > 0 || plan.experiment.stop.steps > 0 || plan.experiment.branch.samples > 0;
}

// Returns the number of samples that are left of branch.samples.
std::int64_t samples_left(const RunPlan& plan, const Position& p) {
  return plan.branch.position.samples + plan.experiment.branch.samples - p.samples;
}

// Returns the position at which the batch of `position` changes or the run ends. Returns nothing if neither is known.
std::optional<Position> end_of_batch(const RunPlan& plan, const BatchCourse& course, const Position& position) {
  const BatchStage* stage = &course.stage_at(position);
  if (stage == &course.stages.back() && !has_end(plan)) return std::nullopt;
  return course.first(position, [&](const Position& p) { return is_over(plan, p) || &course.stage_at(p) != stage; });
}

// Returns the position at which the run ends on this course. Returns nothing if it is not known.
std::optional<Position> end_of_run(const RunPlan& plan, const BatchCourse& course) {
  if (!has_end(plan)) return std::nullopt;
  return course.first(course.settled(plan.branch.position), [&](const Position& p) { return is_over(plan, p); });
}

bool knows_updates(const RunPlan& plan) {
  return plan.adascale_times == 0 && plan.experiment.batch.follow_noise == 0;
}

// Returns the position of the first update at or after this step of the schedule, or the end of the run.
Position first_update(const RunPlan& plan, std::int64_t step) {
  return plan.course.first(plan.course.settled(plan.branch.position), [&](const Position& p) {
    return plan.schedule.steps(p) >= static_cast<double>(step) || is_over(plan, p);
  });
}

std::string describe_batch(const RunPlan& plan, std::int64_t batch) {
  const std::int64_t passes = resized(plan.batch, batch).accumulation;
  return cat(with_thousands(batch), " samples, ", passes, passes == 1 ? " micro-step" : " micro-steps");
}

std::string describe_following(const RunPlan& plan) {
  const BatchConfig& batch = plan.experiment.batch;
  Table t;
  t.section("course of the batch");
  for (const std::int64_t b : plan.batches) t.row(b == batch.global ? "first" : "doubled", describe_batch(plan, b));
  t.row("doubles", cat("after the batch has been below ", with_digits(batch.follow_noise),
                       " x the noise scale's lower bound for ", with_thousands(plan.patience), " samples"));
  const auto steps_at = [&](std::int64_t b) {
    return end_of_run(plan, constant_course(b, plan.samples_per_epoch, plan.course.keeps_rest))->step;
  };
  if (has_end(plan))
    t.row("steps", cat("from ", with_thousands(steps_at(plan.batches.back())), " to ",
                       with_thousands(steps_at(plan.batches.front())), ", depending on the noise scale"));
  return t.str();
}

// Plans the course of a run that is not a branch.
void plan_own_course(RunPlan& plan) {
  const Experiment& e = plan.experiment;
  const bool keeps_rest = plan.course.keeps_rest;
  if (e.batch.follow_noise > 0) {
    plan.schedule.total_steps = last_step_of_epochs(plan);
    plan.updates = e.stop.epochs > 0 ? 0 : e.stop.steps;
  } else if (has_end(plan) && (keeps_rest || plan.course.stages.size() > 1)) {
    const Position end = *end_of_run(plan, plan.course);
    plan.updates = end.step;
    plan.schedule.total_steps = std::llround(plan.schedule.steps(end));
    if (e.stop.epochs > 0) plan.schedule.total_steps = std::min(plan.schedule.total_steps, last_step_of_epochs(plan));
  }
}

// A branch uses the schedule of the run that it leaves, with that run's batch. The branch's own batches and rate are
// multiplied by its factors.
void plan_branch(RunPlan& plan) {
  RunPlan source = plan;
  source.experiment = source_experiment(plan.experiment);
  source.branch = {};
  source.batch = resized(plan.batch, source.experiment.batch.global);
  LoaderPlan& loader = source.train_loader;  // only the steps of an epoch are needed, on one rank
  loader.global_batch = loader.rows = loader.micro_batch = source.batch.global;
  source.batches = batches_on_course(source.experiment.batch);
  plan_course(source);
  plan.schedule = source.schedule;
  plan.course =
      course_of(plan.experiment, plan.samples_per_epoch, source.course.keeps_rest, plan.schedule.samples_per_epoch());
  plan.train_loader.course = plan.course;
  Position& begin = plan.branch.position;
  // If the source run does not exist yet, the branch begins where the source run will reach the point.
  if (const auto from = parse_run_and_point(plan.experiment.branch.from); from && plan.branch.source == 0)
    begin = position_of(from->point, source).value_or(Position{});
  begin = plan.course.settled(begin);
  const BranchConfig& branch = plan.experiment.branch;
  const std::string& schedule = plan.experiment.learning_rate.schedule;
  const double end = plan.schedule.steps(begin) +
                     static_cast<double>(branch.samples) / static_cast<double>(plan.schedule.global_batch);
  const auto last = static_cast<double>(plan.schedule.total_steps);
  if ((schedule == "cosine" || schedule == "polynomial") && end > last + 1)
    throw Error(cat("branch.samples is ", branch.samples, ", but the schedule, ", schedule,
                    ", of the run that it leaves ", "at step ", begin.step, " ends ",
                    std::llround(std::max(0.0, last - plan.schedule.steps(begin)) *
                                 static_cast<double>(plan.schedule.global_batch)),
                    " samples later, expected no more"),
                "branch from an earlier checkpoint, or for fewer samples");
  if (has_end(plan) && plan.experiment.batch.follow_noise == 0) plan.updates = end_of_run(plan, plan.course)->step;
}

}  // namespace

void plan_course(RunPlan& plan) {
  const Experiment& e = plan.experiment;
  const bool keeps_rest = e.data.last_batch == "smaller";
  plan.train_loader.course = constant_course(plan.batch.global, plan.samples_per_epoch, keeps_rest);
  const std::int64_t steps = steps_per_epoch(plan.train, plan.train_loader);
  if (plan.samples_per_epoch < plan.batches.back())
    throw Error(cat(plan.train.prefix, ": an epoch has only ", plan.samples_per_epoch,
                    " samples, but the batch may grow to ", plan.batches.back()),
                "set batch.largest to what an epoch holds, or less");
  if (is_branch(e)) return plan_branch(plan);
  plan.schedule.global_batch = plan.batch.global;
  plan.schedule.steps_per_epoch = steps;
  if (keeps_rest && plan.samples_per_epoch % plan.batch.global != 0) plan.schedule.whole_epoch = plan.samples_per_epoch;
  plan.course = batch_course(e.batch, plan.samples_per_epoch, keeps_rest, plan.schedule.samples_per_epoch());
  plan.train_loader.course = plan.course;
  plan.schedule.total_steps = total_steps(e.stop, steps);
  plan.updates = plan.schedule.total_steps;
  plan_own_course(plan);
}

double rate_at(const RunPlan& plan, const Position& position, double scale_invariant_steps) {
  return learning_rate(plan.experiment.learning_rate, rate_schedule(plan),
                       schedule_steps(plan, position, scale_invariant_steps)) *
         plan.course.stage_at(position).rate_factor;
}

double decay_factor_at(const RunPlan& plan, const Position& position, std::int64_t samples) {
  return decay_factor(plan.experiment, rate_schedule(plan), static_cast<double>(samples),
                      plan.course.stage_at(position).rate_factor);
}

bool has_step(const RunPlan& plan, std::int64_t step) {
  const std::int64_t total = rate_schedule(plan).total_steps;
  return knows_updates(plan) ? !is_over(plan, first_update(plan, step)) : total == 0 || step < total;
}

double end_epoch(const RunPlan& plan) {
  const ScheduleContext& schedule = rate_schedule(plan);
  if (!knows_updates(plan)) return schedule.epochs_of(schedule.total_steps);
  const std::optional<Position> end = end_of_run(plan, plan.course);
  return end ? schedule.epochs(*end) : 0;
}

std::vector<RateChange> rate_changes(const RunPlan& plan) {
  const ScheduleContext& schedule = rate_schedule(plan);
  const Position begin = plan.course.settled(plan.branch.position);
  std::vector<RateChange> changes;
  const auto add = [&](RateChange change) {
    if (changes.empty() || changes.back().step != change.step)
      changes.push_back(std::move(change));
    else
      changes.back().what += cat("; ", change.what);
  };
  const auto add_update = [&](const Position& p, std::string what) {
    add({p.step, schedule.epochs(p), rate_at(plan, p), std::move(what)});
  };
  const bool known = knows_updates(plan), branch = is_branch(plan.experiment);
  if (known && branch) add_update(begin, "where the branch begins");
  for (const LearningRateCorner& corner : learning_rate_corners(plan.experiment.learning_rate, schedule)) {
    if (known) {
      const Position p = first_update(plan, corner.step);
      if (!is_over(plan, p) && !(branch && p == begin)) add_update(p, corner.what);
    } else if (has_step(plan, corner.step)) {
      const auto step = static_cast<double>(corner.step);
      add({corner.step, schedule.epochs_of(corner.step),
           learning_rate(plan.experiment.learning_rate, schedule, step) * plan.course.stages.front().rate_factor,
           corner.what});
    }
  }
  if (known && has_end(plan))
    add_update(plan.course.first(begin, [&](const Position& p) { return is_over(plan, plan.course.after(p)); }),
               "last update");
  return changes;
}

Position place_of_step(const ScheduleContext& schedule, std::int64_t step) {
  return position_at(step, schedule.global_batch, schedule.steps_per_epoch * schedule.global_batch);
}

bool is_over(const RunPlan& plan, const Position& position) {
  const StopConfig& stop = plan.experiment.stop;
  const BranchConfig& branch = plan.experiment.branch;
  if (branch.samples > 0) return samples_left(plan, position) <= 0;
  // The branch ends where the run that it leaves ends. Updates with another batch cannot be compared by their number.
  if (is_branch(plan.experiment) && branch.batch_factor != 1)
    return plan.schedule.total_steps > 0 &&
           plan.schedule.steps(position) >= static_cast<double>(plan.schedule.total_steps) - 1e-9;
  return (stop.steps > 0 && position.step >= stop.steps) ||
         (stop.epochs > 0 && plan.adascale_times == 0 &&
          plan.schedule.steps(position) >= static_cast<double>(last_step_of_epochs(plan)));
}

std::string describe_batch_course(const RunPlan& plan) {
  if (plan.experiment.batch.follow_noise > 0) return describe_following(plan);
  if (plan.course.stages.size() == 1) return "";
  Table t;
  t.section("course of the batch");
  std::optional<Position> begin = plan.branch.position;
  while (begin && !is_over(plan, *begin)) {
    const std::optional<Position> end = end_of_batch(plan, plan.course, *begin);
    t.row(cat("from epoch ", with_digits(plan.schedule.epochs(*begin))),
          cat(describe_batch(plan, plan.course.batch_at(*begin)), ", rate ", with_digits(rate_at(plan, *begin)),
              end ? cat(", ", with_thousands(end->step - begin->step), " steps") : std::string()));
    begin = end;
  }
  return t.str();
}

std::string describe_learning_rate(const RunPlan& plan) {
  Table t;
  t.section(plan.adascale_times > 0 ? "learning rate without AdaScale's gain, by scale-invariant steps"
            : knows_updates(plan)   ? "learning rate of the update after so many steps"
                                    : "learning rate, by steps of the first batch");
  if (const double end = end_epoch(plan); is_branch(plan.experiment) && end > 0)
    t.row("until epoch", cat(with_digits(end), "; steps and epochs are counted from the beginning of the source run"));
  const auto add = [&](const RateChange& c) {
    t.row(cat("step ", c.step, " (epoch ", with_digits(c.epoch), ")"), cat(with_digits(c.rate), "  ", c.what));
  };
  for (const RateChange& c : rate_changes(plan)) add(c);
  // A decay reaches its end one step after the last update.
  if (decays_to_end(plan.experiment.learning_rate) && knows_updates(plan) && !is_branch(plan.experiment))
    if (const std::optional<Position> end = end_of_run(plan, plan.course))
      add({end->step, plan.schedule.epochs(*end), rate_at(plan, *end), "end"});
  return t.str();
}

}  // namespace ringtrain
