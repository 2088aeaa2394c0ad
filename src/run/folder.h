// The folder of a run: results/<name>/<id>/ or run.dir. Only rank 0 uses it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "config/experiment.h"
#include "config/reader.h"

namespace ringtrain {

// Returns whether results/<name> is a folder of the program itself. No experiment or study may write into it.
bool is_kept_name(std::string_view name);

// Throws Error if the program uses the place that name and run.id say. Makes nothing.
void check_run_place(const Experiment& experiment);
// Returns why a new run cannot use the folder that run.dir or run.id names, with advice. "" if it can, or if neither
// key is given. Makes nothing.
std::string why_folder_is_taken(const Experiment& experiment);

// Returns the path of the run's folder. It is run.dir, or results/<name>/<run.id>. Without run.dir and run.id, it is
// results/<name>/<time, as in 20261121-103059>, or with `resume` the folder that results/<name>/latest points to. A
// folder named by the time is made here, so that two runs never get the same folder. If another job started in the same
// second, -2, -3, ... is appended. Throws Error if the program uses the name itself.
std::string run_folder_path(const Experiment& experiment, bool resume);

struct RunSource {
  ExperimentArguments experiment;
  std::string folder;  // the folder of the run to resume; "": run_folder_path() finds it
};

// Returns the experiment file of a command line whose source may be a run's folder or the experiment.yaml in it. With
// `resume`, such a source means that run, unless the user's overrides name another folder with run.dir or run.id.
// Without `resume`, the stored experiment is trained again: run.dir and run.id, which name the old folder, are
// cleared. Other sources are returned unchanged. Throws Error for a folder without a run, and for a run's folder
// without `resume`.
RunSource source_of_run(ExperimentArguments source, bool resume);

// Makes the folder, checks that it can be written, and locks it. Throws Error with a hint.
//
// A new run needs a missing or empty folder. `resume` needs the folder of an earlier run, or an empty folder, in which
// it starts at step 0. A lock on <folder>/.lock prevents two jobs in one folder. The kernel releases the lock when the
// process ends. If the file system has no locks, the host and process id in the file decide: a lock of this host whose
// process has ended is taken over.
class RunFolder {
 public:
  RunFolder(const std::string& path, bool resume);
  // Returns the folder of a study's trial, for the study. It is made if it is missing, and an earlier start may have
  // used it. The study has a lock of its own, <folder>/.trial.lock; the trial's run locks the folder as any run does.
  // Null if another study works on the trial, or a run in its folder. `look` is called before and after the lock is
  // taken, because another process may use the folder in between. Null if it returns false.
  static std::unique_ptr<RunFolder> claim(const std::string& path, const std::function<bool()>& look);
  ~RunFolder();  // releases the lock
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return path_; }
  // Call this before writing anything that could destroy another job's work. If the lock file was removed, it is made
  // and locked again, with a warning. Throws Error if another process has taken the folder since.
  void keep_lock() const;
  // Points the relative link results/<name>/latest to this folder, if the folder's path is results/<name>/<id> and it
  // is no trial's folder. Call it only after the run has really started. If a start fails, the link must still point to
  // the previous run.
  void become_latest() const;

 private:
  enum class Contents { of_a_new_run, of_a_run, of_a_trial };
  RunFolder(const std::string& path, Contents contents);
  std::string path_;
  const char* lock_name_;
  mutable int lock_ = -1;  // keep_lock() may have to open it again
};

// The files of a run: its record (run/run_record.h), its experiment, and the results of its steps (run/metrics.h).
inline constexpr const char* run_record_name = "run.json";
inline constexpr const char* run_experiment_name = "experiment.yaml";
inline constexpr const char* run_metrics_name = "metrics.jsonl";

// Returns whether the folder has one of these files, or a folder of checkpoints. One that cannot be looked at counts.
bool holds_a_run(const std::string& folder);

// A study's files in a trial's folder, in addition to the files of a run: the state of the trial
// (study/trial_record.h), the experiment that the run gets, what its ranks have printed, and how the run has ended
// (study/trial_record.h).
inline constexpr const char* trial_file_name = "trial.json";
inline constexpr const char* trial_experiment_name = "trial.yaml";
inline constexpr const char* trial_log_name = "log.txt";
inline constexpr const char* trial_report_name = ".report.json";

// Returns whether the process that wrote the text of a lock file has ended. The text is "host pid 1234", with "job 4711
// restart 0" under Slurm. The process must be on this host, or belong to an earlier start of this requeued job.
// Processes of other hosts cannot be checked and count as running. An empty text means a released lock.
bool lock_owner_is_gone(const std::string& text);

}  // namespace ringtrain
