#include "run/course.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/table.h"
#include "config/rate_scaling.h"
#include "data/row_plan.h"
#include "optim/schedule.h"
#include "run/task.h"

namespace ringtrain {
namespace {

// What ends a run, apart from the time and a target.
struct RunLimits {
  const StopConfig& stop;
  const BranchConfig& branch;
  bool is_branch = false;
  Position begin;  // of a branch
  const ScheduleContext& schedule;
  bool by_gain = false;  // AdaScale: stop.epochs does not count updates

  bool are_known() const { return stop.epochs > 0 || stop.steps > 0 || branch.samples > 0; }
  bool are_reached(const Position& position) const;
};

// Returns the number of steps that stop.epochs asks for, in steps of the schedule. 0: stop.epochs is not given.
std::int64_t last_step_of_epochs(const StopConfig& stop, const ScheduleContext& schedule) {
  StopConfig by_epochs = stop;
  by_epochs.steps = 0;
  return total_steps(by_epochs, schedule.steps_per_epoch);
}

bool RunLimits::are_reached(const Position& position) const {
  if (branch.samples > 0) return begin.samples + branch.samples - position.samples <= 0;
  // The branch ends where the run that it leaves ends. Updates with another batch cannot be compared by their number.
  if (is_branch && branch.batch_factor != 1)
    return schedule.total_steps > 0 && schedule.steps(position) >= static_cast<double>(schedule.total_steps) - 1e-9;
  return (stop.steps > 0 && position.step >= stop.steps) ||
         (stop.epochs > 0 && !by_gain &&
          schedule.steps(position) >= static_cast<double>(last_step_of_epochs(stop, schedule)));
}

RunLimits limits_of(const RunPlan& plan) {
  const Experiment& e = plan.experiment;
  return {e.stop, e.branch, is_branch(e), plan.branch.position, plan.schedule, plan.adascale_times > 0};
}

bool has_end(const RunPlan& plan) {
  return limits_of(plan).are_known();
}

// Returns the position at which the batch of `position` changes or the run ends. Returns nothing if neither is known.
std::optional<Position> end_of_batch(const RunPlan& plan, const BatchCourse& course, const Position& position) {
  const BatchStage* stage = &course.stage_at(position);
  if (stage == &course.stages.back() && !has_end(plan)) return std::nullopt;
  return course.first(position, [&](const Position& p) { return is_over(plan, p) || &course.stage_at(p) != stage; });
}

// Returns the position at which the run ends on this course. Returns nothing if it is not known.
std::optional<Position> end_of_run(const RunLimits& limits, const BatchCourse& course) {
  if (!limits.are_known()) return std::nullopt;
  return course.first(course.settled(limits.begin), [&](const Position& p) { return limits.are_reached(p); });
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
    return end_of_run(limits_of(plan), constant_course(b, plan.samples_per_epoch, plan.course.keeps_rest))->step;
  };
  if (has_end(plan))
    t.row("steps", cat("from ", with_thousands(steps_at(plan.batches.back())), " to ",
                       with_thousands(steps_at(plan.batches.front())), ", depending on the noise scale"));
  return t.str();
}

// Epochs such as 0.3 are not exact in binary. The tolerance avoids choosing the step after the one that is meant.
bool has_passed(const RunPoint& point, const ScheduleContext& schedule, const Position& position) {
  if (point.in_steps) return static_cast<double>(position.step) >= point.at;
  return schedule.steps(position) + 1e-6 >= point.at * static_cast<double>(schedule.steps_per_epoch);
}

// As position_of(), for a run that begins at `begin`, before the rest of its plan is made.
std::optional<Position> position_in(const RunPoint& point, const ScheduleContext& schedule, const BatchCourse& course,
                                    const Position& begin, bool follows_noise) {
  if (has_passed(point, schedule, begin)) return begin;
  if (follows_noise) return std::nullopt;
  return course.first(begin, [&](const Position& p) { return has_passed(point, schedule, p); });
}

// The steps of a run: the part of its plan that a branch takes from the run that it leaves.
struct RunSteps {
  BatchCourse course;
  BranchPoint branch;
  ScheduleContext schedule;
  std::int64_t updates = 0;
};

// Returns how an epoch is read with this batch, on one rank.
LoaderPlan epoch_of(const Experiment& e, const DatasetIndex& train, std::int64_t sequence, std::int64_t batch) {
  const BatchPlan all{.global = batch, .rows_per_rank = batch, .micro_batch = batch};
  return loader_plan(e, train, sequence, all, false);
}

// Returns the steps of an epoch with the experiment's first batch. Throws Error if a batch needs more than an epoch.
std::int64_t checked_steps_per_epoch(const Experiment& e, const DatasetIndex& train, std::int64_t sequence,
                                     std::int64_t samples) {
  LoaderPlan epoch = epoch_of(e, train, sequence, e.batch.global);
  epoch.course = constant_course(e.batch.global, samples, e.data.last_batch == "smaller");
  const std::int64_t steps = steps_per_epoch(train, epoch);
  if (const std::int64_t largest = batches_on_course(e.batch).back(); samples < largest)
    throw Error(cat(train.prefix, ": an epoch has only ", samples, " samples, but the batch may grow to ", largest),
                "set batch.largest to what an epoch holds, or less");
  return steps;
}

// Returns the steps of a run that is not a branch.
RunSteps own_steps(const Experiment& e, const DatasetIndex& train, std::int64_t sequence, std::int64_t samples) {
  const bool keeps_rest = e.data.last_batch == "smaller";
  const std::int64_t steps = checked_steps_per_epoch(e, train, sequence, samples), all = total_steps(e.stop, steps);
  const bool has_rest = keeps_rest && samples % e.batch.global != 0;
  const auto schedule_to = [&](std::int64_t total) {
    return ScheduleContext{e.batch.global, steps, total, has_rest ? samples : 0};
  };
  const ScheduleContext schedule = schedule_to(all);
  const std::int64_t by_epochs = last_step_of_epochs(e.stop, schedule);
  const BatchCourse course = batch_course(e.batch, samples, keeps_rest, schedule.samples_per_epoch());
  if (e.batch.follow_noise > 0) return {course, {}, schedule_to(by_epochs), e.stop.epochs > 0 ? 0 : e.stop.steps};
  const RunLimits limits{e.stop, e.branch, false, {}, schedule};
  if (!limits.are_known() || (!keeps_rest && course.stages.size() == 1)) return {course, {}, schedule, all};
  const Position end = *end_of_run(limits, course);
  const std::int64_t total = std::llround(schedule.steps(end));
  return {course, {}, schedule_to(e.stop.epochs > 0 ? std::min(total, by_epochs) : total), end.step};
}

// A branch uses the schedule of the run that it leaves, with that run's batch. The branch's own batches and rate are
// multiplied by its factors.
RunSteps branch_steps(const Experiment& e, const DatasetIndex& train, std::int64_t sequence, std::int64_t samples,
                      const BranchPoint& known) {
  checked_steps_per_epoch(e, train, sequence, samples);
  const RunSteps source = own_steps(source_experiment(e), train, sequence, samples);
  const ScheduleContext& schedule = source.schedule;
  const BatchCourse course = course_of(e, samples, source.course.keeps_rest, schedule.samples_per_epoch());
  // If the source run does not exist yet, the branch begins where the source run will reach the point.
  const auto from = known.source == 0 ? parse_run_and_point(e.branch.from) : std::nullopt;
  const Position begin = course.settled(
      from ? position_in(from->point, schedule, source.course, {}, e.batch.follow_noise > 0).value_or(Position{})
           : known.position);
  const std::string& kind = e.learning_rate.schedule;
  const double end =
      schedule.steps(begin) + static_cast<double>(e.branch.samples) / static_cast<double>(schedule.global_batch);
  const auto last = static_cast<double>(schedule.total_steps);
  if ((kind == "cosine" || kind == "polynomial") && end > last + 1)
    throw Error(
        cat("branch.samples is ", e.branch.samples, ", but the schedule, ", kind, ", of the run that it leaves ",
            "at step ", begin.step, " ends ",
            std::llround(std::max(0.0, last - schedule.steps(begin)) * static_cast<double>(schedule.global_batch)),
            " samples later, expected no more"),
        "branch from an earlier checkpoint, or for fewer samples");
  const RunLimits limits{e.stop, e.branch, true, begin, schedule};
  const std::optional<Position> over = e.batch.follow_noise > 0 ? std::nullopt : end_of_run(limits, course);
  return {course, {begin, known.source}, schedule, over ? over->step : 0};
}

// Returns AdaScale's schedule, whose epochs have as many steps as those of a run at base_batch. stop.epochs counts
// these epochs.
ScheduleContext schedule_of_base(const Experiment& e, const DatasetIndex& train, std::int64_t sequence) {
  const std::int64_t base = e.learning_rate.base_batch;
  const std::int64_t steps = samples_per_epoch(train, epoch_of(e, train, sequence, base)) / base;
  return {base, steps, last_step_of_epochs(e.stop, {.steps_per_epoch = steps})};
}

// Returns evaluate.norm_samples.
std::int64_t norm_samples_of(const Experiment& e, const DatasetIndex& train, std::int64_t samples) {
  const std::int64_t norms = e.evaluate.norm_samples;
  if (norms > samples)
    throw Error(cat("evaluate.norm_samples is ", norms, ", but ", train.prefix, " has ", samples, " samples",
                    samples < train.total ? cat(" in data.share ", e.data.share) : ""),
                cat("expected at most ", samples / e.batch.worker * e.batch.worker));
  return norms;
}

}  // namespace

RunCourse plan_course(const Experiment& e, const DatasetIndex& train, std::int64_t sequence,
                      const std::optional<BranchPoint>& branch) {
  const std::int64_t samples = samples_per_epoch(train, epoch_of(e, train, sequence, e.batch.global));
  const std::int64_t norm_samples = norm_samples_of(e, train, samples);
  const RunSteps steps = is_branch(e) ? branch_steps(e, train, sequence, samples, branch.value_or(BranchPoint{}))
                                      : own_steps(e, train, sequence, samples);
  ScheduleContext schedule = steps.schedule;
  if (e.optimizer.adascale) schedule.total_steps = e.stop.steps;  // stop.epochs counts no updates
  const double half_life =
      static_cast<double>(e.noise.half_life > 0 ? e.noise.half_life : 100 * source_experiment(e).batch.global);
  const std::int64_t base = e.learning_rate.base_batch;
  RunCourse plan{
      .samples_per_epoch = samples,
      .batches = batches_on_course(e.batch),
      .course = steps.course,
      .branch = steps.branch,
      .schedule = schedule,
      .updates = e.optimizer.adascale ? e.stop.steps : steps.updates,
      .adascale_times = e.optimizer.adascale ? static_cast<double>(e.batch.global) / static_cast<double>(base) : 0,
      .base_schedule = e.optimizer.adascale ? schedule_of_base(e, train, sequence) : ScheduleContext{},
      .noise_half_life = half_life,
      .patience = e.batch.patience > 0 ? e.batch.patience : std::llround(half_life),
      .norm_samples = norm_samples};
  learning_rate(e.learning_rate, rate_schedule(plan), 0);  // an incomplete schedule throws Error here
  return plan;
}

std::int64_t total_steps(const StopConfig& stop, std::int64_t steps_per_epoch) {
  std::int64_t steps = 0;
  if (stop.epochs > 0)
    steps = std::max<std::int64_t>(1, std::llround(stop.epochs * static_cast<double>(steps_per_epoch)));
  if (stop.steps > 0) steps = steps > 0 ? std::min(steps, stop.steps) : stop.steps;
  return steps;
}

const ScheduleContext& rate_schedule(const RunCourse& plan) {
  return plan.adascale_times > 0 ? plan.base_schedule : plan.schedule;
}

double schedule_steps(const RunCourse& plan, const Position& position, double scale_invariant_steps) {
  return plan.adascale_times > 0 ? std::floor(scale_invariant_steps) : plan.schedule.steps(position);
}

bool sums_small_norms(const RunCourse& plan) {
  return plan.adascale_times > 1;
}

std::int64_t gradient_elements(const RunCourse& plan, const ParameterTable& parameters) {
  return parameters.size() + (sums_small_norms(plan) ? tensor_alignment : 0);
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

std::vector<BatchStage> batch_stages(const RunPlan& plan) {
  std::vector<BatchStage> stages = plan.course.stages;
  if (plan.experiment.batch.follow_noise > 0) {
    stages.push_back(stages.front());
    stages.back().batch = plan.batches.back();
  }
  return stages;
}

double peak_decay(const RunPlan& plan, const BatchStage& stage) {
  const Experiment& e = plan.experiment;
  const auto samples = static_cast<double>(stage.batch);
  return peak_rate(e.learning_rate, plan.schedule.global_batch) * stage.rate_factor * e.optimizer.weight_decay *
         decay_factor(e, plan.schedule, samples, stage.rate_factor);
}

bool has_step(const RunPlan& plan, std::int64_t step) {
  const std::int64_t total = rate_schedule(plan).total_steps;
  return knows_updates(plan) ? !is_over(plan, first_update(plan, step)) : total == 0 || step < total;
}

double end_epoch(const RunPlan& plan) {
  const ScheduleContext& schedule = rate_schedule(plan);
  if (!knows_updates(plan)) return schedule.epochs_of(schedule.total_steps);
  const std::optional<Position> end = end_of_run(limits_of(plan), plan.course);
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
  return limits_of(plan).are_reached(position);
}

bool has_all_steps(const RunPlan& plan, const Position& position, double scale_invariant_steps) {
  if (is_over(plan, position)) return true;
  if (plan.experiment.branch.samples > 0) return false;
  const auto end = static_cast<double>(plan.base_schedule.total_steps);
  return plan.adascale_times > 0 && end > 0 && scale_invariant_steps >= end;
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
              end ? ", " + counted(end->step - begin->step, "step") : std::string()));
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
    if (const std::optional<Position> end = end_of_run(limits_of(plan), plan.course))
      add({end->step, plan.schedule.epochs(*end), rate_at(plan, *end), "end"});
  return t.str();
}

std::string describe_adascale_stop(const RunPlan& plan) {
  const std::int64_t steps = plan.base_schedule.total_steps;
  const double least = std::ceil(static_cast<double>(steps) / plan.adascale_times);
  return cat("after ", with_thousands(steps), " scale-invariant steps (", plan.experiment.stop.epochs,
             " epochs): ", with_thousands(std::llround(least)), " to ", with_thousands(steps), " steps");
}

namespace {

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

bool due(double every_epochs, std::int64_t every_steps, const RunPlan& plan, const Position& before,
         const Position& position, double offset_epochs) {
  if (every_steps > 0 && position.step % every_steps == 0) return true;
  if (every_epochs <= 0) return false;
  const double interval = every_epochs * static_cast<double>(plan.schedule.steps_per_epoch);
  const double offset = offset_epochs * static_cast<double>(plan.schedule.steps_per_epoch);
  const auto intervals = [&](const Position& p) {
    return std::floor((plan.schedule.steps(p) - offset) / interval + 1e-9);
  };
  return intervals(position) >= 0 && intervals(position) > intervals(before);
}

bool all_meet_after(const RunPlan& plan, const Position& before, const Position& position) {
  const EvaluateConfig& e = plan.experiment.evaluate;
  const CheckpointConfig& c = plan.experiment.checkpoint;
  return has_all_steps(plan, position, 0) || reaches_kept_point(plan, before, position) ||
         due(c.every_epochs, c.every_steps, plan, before, position) ||
         (plan.has_validation && due(e.every_epochs, e.every_steps, plan, before, position, e.offset_epochs));
}

std::optional<Position> position_of(const RunPoint& point, const RunPlan& plan) {
  return position_in(point, plan.schedule, plan.course, plan.branch.position, plan.experiment.batch.follow_noise > 0);
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

}  // namespace ringtrain
