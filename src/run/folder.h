// The run's own folder: results/<name>/<id>/ or run.dir. Rank 0 only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "config/experiment.h"
#include "config/reader.h"

namespace ringtrain {

// Whether results/<name> is a folder of the program, which no experiment or study may write into.
bool is_kept_name(std::string_view name);

// Where the run lives: run.dir, or results/<name>/<run.id or the time as 20261121-103059>; with `resume` and neither
// given, the folder that results/<name>/latest points to. A folder named by the time is made here (-2, -3, ... when
// another job started in the same second), so that no two runs get the same one. Throws Error where the name is kept.
std::string run_folder_path(const Experiment& experiment, bool resume);

// The experiment file and overrides of a command line whose source may be a run's folder, or the experiment.yaml in it.
// With `resume`, such a source means that very run: its experiment.yaml, with run.dir the folder (an override of
// run.dir by the user counts more). Other sources are returned as they are. Throws Error for a folder that is no run's,
// and for a run's folder without `resume`.
ExperimentArguments experiment_of_run(ExperimentArguments source, bool resume);

// Makes the folder, probes that it can be written, and checks: a new run needs an absent or empty folder, `resume` an
// existing one that a run has made, or an empty one (without a checkpoint it starts at step 0). A lock on
// <folder>/.lock guards against two jobs in one folder; the kernel drops it with the process, and where the file system
// has no locks the host and pid written in it decide: a lock of this host whose process is gone is taken over. Throws
// Error with what to do.
class RunFolder {
 public:
  RunFolder(const std::string& path, bool resume);
  // A study's trial: its folder is made where it is missing, and may hold an earlier start. Null: another process has
  // the lock.
  static std::unique_ptr<RunFolder> claim(const std::string& path);
  // The same where `look` says yes, before and after the lock was taken: another process may have had it in between.
  // Null where it says no.
  static std::unique_ptr<RunFolder> claim_where(const std::string& path, const std::function<bool()>& look);
  ~RunFolder();  // releases the lock
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return path_; }
  // Before something is written that another job's work could be lost to: where the lock file was removed meanwhile, it
  // is made and locked again, with a warning. Throws Error where another process has taken the folder since.
  void keep_lock() const;
  // Points results/<name>/latest, a relative link, to this folder when its path is results/<name>/<id>. To be called
  // once the run has really started: a start that fails must leave the link at the run before.
  void become_latest() const;

 private:
  enum class Contents { of_a_new_run, of_a_run, of_either };
  RunFolder(const std::string& path, Contents contents);
  std::string path_;
  mutable int lock_ = -1;  // keep_lock() may have to open it again
};

// What a trial's folder holds beside the files of a run: its state (study/trial_record.h).
inline constexpr const char* trial_file_name = "trial.json";

// Whether the text of a lock file ("host pid 1234", under Slurm with "job 4711 restart 0") names a process of this
// host, or an earlier life of this requeued job, that is gone. Other hosts' processes cannot be seen and count as
// alive; an empty text is a released lock.
bool lock_owner_is_gone(const std::string& text);

}  // namespace ringtrain
