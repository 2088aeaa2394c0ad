#include "checkpoint/resume.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "checkpoint/find_checkpoint.h"
#include "checkpoint/run_state.h"
#include "checkpoint/writer.h"
#include "config/batch_course.h"
#include "config/experiment.h"
#include "config/reader.h"
#include "config/schema.h"
#include "config/schema_text.h"
#include "optim/schedule.h"
#include "run/course.h"

namespace ringtrain {
namespace {

void read_own(const std::string& run_dir, bool keeps_best, ResumePoint& point, const Progress& progress) {
  std::vector<std::string> warnings;
  std::optional<FoundCheckpoint> newest = read_newest_checkpoint(run_dir, warnings, "", progress);
  for (const std::string& warning : warnings) log_warning(warning);
  if (!newest) return;
  point.path = std::move(newest->path);
  point.checkpoint = std::make_unique<Checkpoint>(std::move(newest->checkpoint));
  point.kind = ResumePoint::Kind::own;
  point.progress = progress_of(*point.checkpoint);
  point.branch = stored_branch_point(*point.checkpoint);
  // A process that was killed between a checkpoint and best.h5 has left the best one of before.
  const std::int64_t step = point.progress.position.step;
  const bool is_best = keeps_best && point.progress.has_best && point.progress.best_step == step;
  const bool has_file = point.path == checkpoint_path(run_dir, step);
  finish_interrupted_write(run_dir, is_best && has_file ? std::optional(step) : std::nullopt, progress);
}

// Reads the source of a branch. The branch's best loss, time and evaluations start from zero.
void read_source(const std::string& from, ResumePoint& point, const Progress& progress) {
  const std::string path = source_checkpoint(from);
  point.path = path;
  point.checkpoint = std::make_unique<Checkpoint>(read_checkpoint(path, "", progress));
  point.kind = ResumePoint::Kind::source;
  const RunProgress theirs = progress_of(*point.checkpoint);
  point.progress.position = theirs.position;
  point.progress.before = theirs.before;
  point.progress.scale_invariant_steps = theirs.scale_invariant_steps;
  point.progress.evaluated_step = theirs.position.step;
  point.branch = branch_point_at(*point.checkpoint);
}

// The members that all ranks need. `choices` are RunChoices::head().
template <class Archive>
void transfer(Archive& archive, ResumePoint& point, std::string& choices) {
  archive(point.kind, point.progress, point.branch, point.micro_batch, choices);
}

// Gives all ranks what rank 0 has read, in one message. Collective.
void share(ResumePoint& point, Communicator& communicator) {
  std::string choices = point.choices.head();
  FieldWriter writer;
  transfer(writer, point, choices);
  const std::string bytes = broadcast_string(communicator, writer.take(), 0);
  if (communicator.rank() == 0) return;
  FieldReader reader(bytes, "the point at which the run continues");
  transfer(reader, point, choices);
  point.choices = RunChoices::of_head(choices);
}

}  // namespace

ResumePoint shared_resume_point(const Experiment& experiment, bool resume, const std::string& run_dir,
                                Communicator& communicator, Watchdog& watchdog) {
  ResumePoint point;
  if (!resume && !is_branch(experiment)) return point;
  SlowWork reading;
  const bool reads = communicator.rank() == 0;
  if (reads)
    reading.start([&](const Progress& progress) {
      if (resume) read_own(run_dir, experiment.checkpoint.best, point, progress);
      if (point.kind == ResumePoint::Kind::beginning && is_branch(experiment))
        read_source(experiment.branch.from, point, progress);
    });
  wait_together(reads ? &reading : nullptr, communicator, watchdog, 0);
  reading.finish();
  if (reads && point.checkpoint) point.micro_batch = facts_of(*point.checkpoint).micro_batch;
  if (reads && resume) {
    point.stop_cost = recorded_stop_cost(run_dir);
    point.choices = read_choices(run_dir);
  }
  share(point, communicator);
  return point;
}

namespace {

constexpr std::string_view fixed_keys[] = {
    // These keys decide the random numbers, the samples of each step and their order, the groups of batch norm, and
    // which targets count.
    "seed", "batch.global", "batch.worker", "data.order", "data.sequence", "data.blanks", "data.augmentation",
    "data.share",
    // These keys decide what the weights mean: names and shapes of the tensors, the place of a block's stride, and the
    // channels that group norm normalises together. Other keys of the model, such as model.widths, decide only shapes,
    // which check_same() compares.
    "model.kind", "model.hidden", "model.layers", "model.depth", "model.width", "model.stem", "model.stride_in",
    "model.norm", "model.normalization", "model.norm_groups",
    // These keys decide the optimizer's state: which vectors exist, whether the momentum holds gradients or gradients
    // times the rate, and Adam's corrections 1 - beta^t, which need the same beta in all t steps, or the product of all
    // betas from the first step on.
    "optimizer.kind", "optimizer.rate_in_momentum", "optimizer.beta1", "optimizer.beta2", "optimizer.half_life.beta1",
    "optimizer.half_life.beta2", "optimizer.schedule_free", "optimizer.other_kind", "average.evaluate",
    // These keys decide the unit in which the run counts its steps.
    "optimizer.adascale", "branch.batch_factor"};

constexpr const char* hint_of_resume =
    "these stay the same over a run: resume with the experiment.yaml of the run's folder, or start a new run "
    "in another run.dir";
constexpr const char* hint_of_branch =
    "a branch keeps these of the run that it leaves: begin with the experiment.yaml of that run's folder, and give the "
    "batch as branch.batch_factor";

bool is_fixed(std::string_view key) {
  return std::find(std::begin(fixed_keys), std::end(fixed_keys), key) != std::end(fixed_keys);
}

// An empty list stands for the data set's own values.
const std::vector<double>& stated_or(const std::vector<double>& stated, const std::vector<double>& own) {
  return stated.empty() ? own : stated;
}

bool same_input_scale(const DataConfig& before, const DataConfig& now, const ImageFormat& own) {
  return stated_or(before.mean, own.mean) == stated_or(now.mean, own.mean) &&
         stated_or(before.std, own.std) == stated_or(now.std, own.std);
}

}  // namespace

Experiment experiment_of(const Checkpoint& checkpoint, const std::string& path) {
  return parse_experiment(checkpoint.text("experiment"), path, {});
}

std::string to_string(const KeyChange& change) {
  return cat(change.key, ": ", change.was, " -> ", change.is);
}

std::string to_string(const std::vector<KeyChange>& changes) {
  return joined(changes, "; ", [](const KeyChange& c) { return cat(c.key, " is ", c.is, ", was ", c.was); });
}

std::vector<KeyChange> changed_keys(const Experiment& before, const Experiment& now) {
  std::vector<KeyChange> changes;
  for (const Field& field : schema()) {
    if (field.key == "run.dir" || field.key == "run.id") continue;
    const std::string was = value_text(field, before), is = value_text(field, now);
    if (was != is)
      changes.push_back(
          {field.key, was, is, decides_what_is_learned(field, before) || decides_what_is_learned(field, now)});
  }
  return changes;
}

// Throws Error if batch.global of the branch does not fit its batch_factor. A branch may leave another branch. All
// factors of such a chain are relative to its first run, which is not a branch and whose schedule all branches use.
static void check_multiple(const Experiment& source, const Experiment& branch, const std::string& path) {
  const std::int64_t batch = source.batch.global, own = branch.batch.global;
  const double factor = branch.branch.batch_factor / source.branch.batch_factor;
  if (std::abs(static_cast<double>(batch) * factor - static_cast<double>(own)) > 1e-6)
    throw Error(cat(path, ": batch.global is ", own, ", but ", factor, " x the ", batch, " of that run is ",
                    static_cast<double>(batch) * factor),
                "set batch.global, and branch.batch_factor to batch.global divided by the batch of that run");
}

// `of_branch` is true if the checkpoint belongs to the run that the branch leaves.
static void check_same(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan, bool of_branch) {
  const Experiment before = experiment_of(checkpoint, path);
  const Experiment& now = plan.experiment;
  std::vector<KeyChange> changes = changed_keys(before, now);
  if (of_branch) {
    check_multiple(before, now, path);
    std::erase_if(changes, [](const KeyChange& c) {
      return section_of(c.key) == "branch" || c.key == "batch.global" || c.key == "batch.largest";
    });
  }
  std::vector<KeyChange> refused;
  for (const KeyChange& c : changes) {
    const bool scale = c.key == "data.mean" || c.key == "data.std";
    const bool place_of_average = c.key == "optimizer.momentum" && now.optimizer.schedule_free;
    const bool begins_average =
        c.key == "average.half_life" && (before.average.half_life > 0) != (now.average.half_life > 0);
    const bool betas = (c.key == "learning_rate.scaling" || c.key == "learning_rate.base_batch") &&
                       (before.learning_rate.scaling == "adam_sde" || now.learning_rate.scaling == "adam_sde");
    const bool unit_of_steps = c.key == "learning_rate.base_batch" && now.optimizer.adascale;
    const bool is_scale = scale && !same_input_scale(before.data, now.data, plan.train.image);
    const bool is_beginning = c.key == "branch.from" && is_branch(before) != is_branch(now);
    const bool course = of_branch && c.key == "batch.schedule";
    if (is_fixed(c.key) || place_of_average || begins_average || betas || unit_of_steps || is_scale || is_beginning ||
        course)
      refused.push_back(c);
  }
  const char* what_to_do = of_branch ? hint_of_branch : hint_of_resume;
  if (!refused.empty())
    throw Error(cat(path, ": the checkpoint is of another experiment: ", to_string(refused)), what_to_do);
  const std::string uuid = checkpoint.text("train_uuid");
  if (uuid != plan.train.dataset_uuid)
    throw Error(cat(path, ": the data set ", plan.train.prefix, " has changed since the checkpoint was made (uuid ",
                    plan.train.dataset_uuid, ", was ", uuid, ")"),
                "put the old data set back, or start a new run in another run.dir");
  if (checkpoint.text("model") == model_fingerprint(plan)) return;
  // Some keys change a model's tensors only in some cases, for example data.image_size for AlexNet.
  std::erase_if(changes, [](const KeyChange& c) { return !c.decides_result; });
  throw Error(cat(path, ": the checkpoint is of another model: its tensors have other names or shapes",
                  changes.empty() ? "" : cat("; ", to_string(changes))),
              what_to_do);
}

// An asynchronous update is made from one worker's share of the batch. So the number of workers must stay the same.
static void check_same_workers(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan) {
  const Experiment before = experiment_of(checkpoint, path);
  if (!plan.servers || !plan.servers->async || before.parallel.mode != "async") return;
  const std::int64_t ranks = facts_of(checkpoint).ranks;
  if (ranks == 0) return;  // no run has written it
  const std::int64_t was = ranks - before.parallel.servers;
  if (was != plan.servers->workers)
    throw Error(cat(path, ": was written with ", was, " workers, and now there are ", plan.servers->workers,
                    ", expected the same number: an update takes batch.global / workers samples"),
                cat("start ", was + plan.servers->servers, " ranks, or a new run in another run.dir"));
}

void check_belongs(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan) {
  check_same(checkpoint, path, plan, false);
  check_same_workers(checkpoint, path, plan);
}

void check_source(const Checkpoint& source, const RunPlan& plan) {
  check_same(source, cat("branch.from ", plan.experiment.branch.from), plan, true);
}

std::string changed_rate(const Experiment& before, const RunPlan& plan, const Position& position,
                         double scale_invariant_steps) {
  const ScheduleContext& schedule = rate_schedule(plan);
  ScheduleContext schedule_before = schedule;
  StopConfig stop_before = before.stop;
  if (plan.adascale_times > 0) stop_before.steps = 0;
  if (!(before.stop == plan.experiment.stop))
    schedule_before.total_steps = total_steps(stop_before, schedule.steps_per_epoch);
  const BatchCourse course_before =
      course_of(before, plan.course.epoch_samples, plan.course.keeps_rest, plan.schedule.samples_per_epoch());
  const auto factor = [&](const BatchCourse& course, std::int64_t step) {
    return course.stage_at(place_of_step(plan.schedule, step)).rate_factor;
  };
  const auto was = [&](std::int64_t step) {
    return learning_rate(before.learning_rate, schedule_before, static_cast<double>(step)) *
           factor(course_before, step);
  };
  const auto is = [&](std::int64_t step) {
    return learning_rate(plan.experiment.learning_rate, schedule, static_cast<double>(step)) *
           factor(plan.course, step);
  };
  const std::int64_t finished = std::llround(schedule_steps(plan, position, scale_invariant_steps));
  std::int64_t step = 0;
  while (step < finished && was(step) == is(step)) ++step;
  if (step >= finished) return "";
  return cat("the learning rate of finished steps would have been another, from step ", step + 1, " on. Step ",
             finished, " had ", was(finished - 1), ". Step ", finished + 1, " has ", is(finished), " instead of ",
             was(finished));
}

}  // namespace ringtrain
