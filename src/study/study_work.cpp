#include "study/study_work.h"

#include <filesystem>

#include "base/error.h"
#include "checkpoint/resume_rules.h"
#include "config/reader.h"
#include "config/yaml_document.h"
#include "run/folder.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

bool has_begun(const fs::path& trial) {
  std::error_code code;
  if (fs::is_symlink(trial, code) || !fs::is_directory(trial, code)) return false;
  return holds_a_run(trial.string()) || fs::exists(trial / trial_file_name, code);
}

}  // namespace

void check_folder(const std::string& folder, bool resume) {
  std::error_code code;
  if (fs::exists(folder, code) && !fs::is_directory(folder, code))
    throw Error(cat(folder, ": exists and is not a folder"), "give the study another name");
  if (resume) return;
  std::string first;
  int begun = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, code))
    if (has_begun(entry.path())) {
      const std::string name = entry.path().filename().string();
      if (begun++ == 0 || name < first) first = name;
    }
  if (begun == 0) return;
  throw Error(cat(folder, ": ", begun, begun == 1 ? " trial has" : " trials have", " begun (", first,
                  begun == 1 ? ")" : ", ...)", ", and a study never overwrites what has run"),
              "add --resume to go on with the trials that have not finished, or give the study another name");
}

void check_same_result(const std::string& folder, const Trial& trial) {
  const std::string place = cat(folder, "/", trial.name), path = cat(place, "/", run_experiment_name);
  std::error_code code;
  if (fs::exists(place, code) && !fs::is_directory(place, code))
    throw Error(cat(place, ": exists and is not a folder"), "remove it, or give the study another name");
  if (!fs::exists(path, code)) return;
  const Experiment before = parse_experiment(read_yaml_text(path, "experiment"), path, {});
  std::vector<KeyChange> changes = changed_keys(before, trial.experiment);
  std::erase_if(changes, [](const KeyChange& change) { return !change.decides_result; });
  if (changes.empty()) return;
  throw Error(cat(place, ": trial ", trial.name, " has run as another experiment: ", to_string(changes)),
              cat("give the same key.path=value arguments as before and put the study and its experiment back as they "
                  "were, or give the study another name, or remove ",
                  place, " to run the trial anew"));
}

Experiment experiment_in(const std::string& folder, const Trial& trial) {
  Experiment experiment = trial.experiment;
  experiment.run.dir = cat(folder, "/", trial.name);
  experiment.run.id = "";
  return experiment;
}

}  // namespace ringtrain
