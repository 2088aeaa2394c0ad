#include "checkpoint/resume_point.h"

#include <optional>
#include <span>
#include <utility>

#include "base/log.h"
#include "checkpoint/branch_point.h"
#include "checkpoint/writer.h"
#include "config/experiment.h"

namespace ringtrain {
namespace {

void read_own(const std::string& run_dir, bool keeps_best, ResumePoint& point, const Progress& progress) {
  std::vector<std::string> warnings;
  std::optional<Checkpoint> newest = read_newest_checkpoint(run_dir, point.path, warnings, progress);
  for (const std::string& warning : warnings) log_warning(warning);
  if (!newest) return;
  point.checkpoint = std::make_unique<Checkpoint>(std::move(*newest));
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
  point.kind = of_rank_0(communicator, point.kind);
  point.progress = of_rank_0(communicator, point.progress);
  point.branch = of_rank_0(communicator, point.branch);
  point.micro_batch = of_rank_0(communicator, point.micro_batch);
  if (resume) point.choices = share_choices(std::move(point.choices), communicator);
  return point;
}

}  // namespace ringtrain
