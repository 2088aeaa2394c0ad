#include "checkpoint/find_checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/table.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_state.h"
#include "config/experiment.h"
#include "config/reader.h"
#include "config/schema.h"
#include "nn/parameters.h"
#include "run/folder.h"

namespace ringtrain {

bool is_experiment_file(const std::string& source) {
  return source.ends_with(".yaml") || source.ends_with(".yml");
}

namespace {

std::string run_folder_of(const std::string& source, const std::vector<std::string>& overrides) {
  if (!is_experiment_file(source)) return source;
  const RunSource run = source_of_run({source, overrides}, true);
  return run.folder.empty() ? run_folder_path(read_experiment(run.experiment.path, run.experiment.overrides), true)
                            : run.folder;
}

struct Place {
  std::int64_t step = 0;
  double epochs = 0;
  double epochs_before = -1;  // epochs at the beginning of the last update
};

Place place_of(const Checkpoint& c) {
  const RunProgress progress = progress_of(c);
  return {c.step, epochs_at(c, progress.position), c.step > 0 ? epochs_at(c, progress.before) : -1};
}

bool is_at(const Place& place, const RunPoint& point) {
  constexpr double rounding = 1e-9;
  if (point.in_steps || (point.at == 0 && place.step == 0)) return static_cast<double>(place.step) == point.at;
  return place.epochs + rounding >= point.at && place.epochs_before + rounding < point.at;
}

std::string described(const Place& place) {
  return cat("step ", place.step, " (epoch ", with_digits(place.epochs), ")");
}

// Returns the header of the checkpoint that branch.from names. Returns nothing if the experiment is not a branch, or if
// branch.from names a point of a run that does not exist yet.
std::optional<Checkpoint> planned_source(const Experiment& experiment) {
  if (!is_branch(experiment)) return std::nullopt;
  const auto point = parse_run_and_point(experiment.branch.from);
  std::error_code too_long;  // a name too long for a file counts as missing
  if (point && !std::filesystem::exists(point->run, too_long)) return std::nullopt;
  return read_checkpoint_header(source_checkpoint(experiment.branch.from));
}

}  // namespace

FoundCheckpoint find_weights(const std::string& source, const std::vector<std::string>& overrides,
                             WhichCheckpoint which) {
  if (!overrides.empty() && !is_experiment_file(source))
    throw Error(cat(source, ": ", overrides[0], " cannot change keys of a checkpoint or run folder"),
                "keys can be given with an experiment file");
  if (source.ends_with(".h5")) return {source, read_checkpoint(source, weights_prefix)};
  const std::string folder = run_folder_of(source, overrides);
  const std::string best = best_checkpoint_path(folder);
  if (which != WhichCheckpoint::newest) {
    if (std::filesystem::exists(best)) return {best, read_checkpoint(best, weights_prefix)};
    if (which == WhichCheckpoint::best)
      throw Error(cat(best, ": no such checkpoint"), "runs with a validation set and checkpoint.best write it");
  }
  std::vector<std::string> warnings;
  std::optional<FoundCheckpoint> newest = read_newest_checkpoint(folder, warnings, weights_prefix);
  for (const std::string& warning : warnings) log_warning(warning);
  if (!newest)
    throw Error(cat(folder, ": no checkpoint there"), "give a run's folder, a checkpoint file, or train first");
  return std::move(*newest);
}

std::string checkpoint_at(const std::string& run_dir, const RunPoint& point) {
  std::string there;
  std::vector<std::int64_t> steps = checkpoint_steps(run_dir);
  std::ranges::reverse(steps);
  for (const std::int64_t step : steps) {
    const std::string path = checkpoint_path(run_dir, step);
    try {
      const Place place = place_of(read_checkpoint_header(path));
      if (is_at(place, point)) return path;
      there += cat(there.empty() ? "" : ", ", described(place));
    } catch (const Error& error) {
      log_warning("checkpoint skipped: ", error.what());
    }
  }
  throw Error(
      cat(run_dir, ": there is no checkpoint at ", with_unit(point),
          there.empty() ? ", and none at another point" : "; there are checkpoints at ", there),
      cat("train with checkpoint.keep_at: [", to_string(point), "], or branch at a point that has a checkpoint"));
}

std::string source_checkpoint(const std::string& from) {
  constexpr const char* what_to_do = "train that run first, with checkpoint.keep_at";
  std::error_code too_long;  // a name too long for a file counts as missing
  if (const auto source = parse_run_and_point(from)) {
    if (!std::filesystem::is_directory(source->run, too_long))
      throw Error(cat("branch.from is ", from, ", but there is no run ", source->run), what_to_do);
    return checkpoint_at(source->run, source->point);
  }
  if (!std::filesystem::exists(from, too_long))
    throw Error(cat("branch.from is ", from, ", but there is no such checkpoint"),
                "give a checkpoint file, or RUN@POINT as results/names/parent@2");
  return from;
}

BranchPoint branch_point_at(const Checkpoint& source) {
  const Experiment experiment = experiment_of(source, "the checkpoint");
  const std::string text = cat(source.step, "\n", source.text("train_uuid"), "\n", source.text_or("branch_source", ""),
                               "\n", deciding_keys(experiment));
  return {progress_of(source).position, fnv1a(text)};
}

RunPlan plan_of_new_run(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                        int ranks, Backend& backend) {
  const std::optional<Checkpoint> source = planned_source(experiment);
  if (!source) return make_run_plan(experiment, train, validation, ranks, backend);
  const RunPlan plan =
      make_run_plan(experiment, train, validation, ranks, backend,
                    micro_batch_of_checkpoint(facts_of(*source).micro_batch), branch_point_at(*source));
  check_source(*source, plan);
  return plan;
}

}  // namespace ringtrain
