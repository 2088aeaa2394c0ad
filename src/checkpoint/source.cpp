#include "checkpoint/source.h"

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "config/reader.h"
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

}  // namespace

std::string checkpoint_of(const std::string& source, const std::vector<std::string>& overrides, WhichCheckpoint which) {
  if (!overrides.empty() && !is_experiment_file(source))
    throw Error(cat(source, ": ", overrides[0], " cannot change keys of a checkpoint or run folder"),
                "keys can be given with an experiment file");
  if (source.ends_with(".h5")) return source;
  const std::string folder = run_folder_of(source, overrides);
  const std::string best = best_checkpoint_path(folder);
  if (which != WhichCheckpoint::newest) {
    if (std::filesystem::exists(best)) return best;
    if (which == WhichCheckpoint::best)
      throw Error(cat(best, ": no such checkpoint"), "runs with a validation set and checkpoint.best write it");
  }
  std::vector<std::string> warnings;
  const std::string newest = newest_checkpoint(folder, &warnings);
  for (const std::string& warning : warnings) log_warning(warning);
  if (newest.empty())
    throw Error(cat(folder, ": no checkpoint there"), "give a run's folder, a checkpoint file, or train first");
  return newest;
}

}  // namespace ringtrain
