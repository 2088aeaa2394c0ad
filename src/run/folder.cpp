#include "run/folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/machine_share.h"
#include "cluster/launcher.h"

namespace ringtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* run_lock = ".lock";
constexpr const char* trial_lock = ".trial.lock";  // of the study that works on a trial
constexpr const char* probe_name = ".probe";
// Lustre and NFS release the locks of a lost node after about one and a half minutes.
constexpr int kLockWaitSeconds = 150;

[[noreturn]] void fail(const std::string& path, const std::string& what, int reason,
                       std::source_location where = std::source_location::current()) {
  throw Error(cat(path, ": ", what, ": ", std::strerror(reason)), advice_for_writing(reason, path), where);
}

std::string read_lock_text(int lock) {
  char text[512];
  const ssize_t length = ::pread(lock, text, sizeof text, 0);
  std::string result(text, length > 0 ? static_cast<std::size_t>(length) : 0);
  while (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

// Returns whether the folder contains nothing but lock files, the probe file of a killed process, the files of a study
// about its trial, and files of NFS. NFS keeps a removed file under another name while a process has it open.
bool is_empty(const std::string& path) {
  const std::string_view known[] = {
      run_lock, trial_lock, probe_name, trial_file_name, trial_experiment_name, trial_log_name, trial_report_name};
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(".tmp")) name.resize(name.size() - 4);
    if (std::ranges::count(known, name) == 0 && !name.starts_with(".nfs")) return false;
  }
  return true;
}

void check_contents(const std::string& path, bool resume) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (!fs::exists(status)) {
    if (resume) throw Error(cat(path, ": no such run folder to resume"), "leave out --resume to start a new run");
    return;
  }
  if (!fs::is_directory(status)) throw Error(cat(path, ": exists and is not a folder"), "set run.dir to another path");
  bool empty = false;
  try {
    empty = is_empty(path);
  } catch (const fs::filesystem_error& error) {
    fail(path, "cannot list the run folder", error.code().value());
  }
  if (empty) return;
  if (!resume) {
    throw Error(cat(path, ": the run folder is not empty, and a run never overwrites another"),
                "add --resume to go on with the run in it, or set run.dir to another folder");
  }
  if (!holds_a_run(path)) {
    throw Error(cat(path, ": holds files, but no run.json, experiment.yaml, metrics.jsonl or checkpoints: not a run"),
                "check run.dir; --resume goes on in the folder of an earlier run");
  }
}

void make_folder(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code) fail(path, "cannot make the run folder", code.value());
}

class FolderInUse : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void refuse(const std::string& path, const std::string& owner, const char* name) {
  throw FolderInUse(cat(path, ": another job works in this run folder (", owner.empty() ? "unknown" : owner, ")"),
                    cat("wait for its end or stop it; if it is surely gone, remove ", path, "/", name));
}

// Returns whether an earlier start of this Slurm job wrote the lock. That start has ended, because Slurm starts a
// requeued job only after it has seen the end of the earlier start.
bool is_of_an_earlier_life(const std::string& owner) {
  std::istringstream words(owner);
  std::string skipped, id;
  int restarts = 0;
  const SlurmJob job = slurm_job();
  words >> skipped >> skipped >> skipped >> skipped >> id >> skipped;
  return words >> restarts && id == job.id && restarts < job.restarts;
}

// Returns 0, or the reason why there is no lock. If only an earlier start of this job can hold the lock, on a node that
// failed, the function waits for the lock.
int lock_file(int lock, const std::string& owner) {
  for (int waited = 0;; ++waited) {
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) return 0;
    const int reason = errno;
    if (reason != EWOULDBLOCK || waited == kLockWaitSeconds || !is_of_an_earlier_life(owner)) return reason;
    ::sleep(1);
  }
}

int take_lock(const std::string& path, const char* name) {
  const std::string file = cat(path, "/", name);
  const int lock = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) fail(path, "cannot write in the run folder", errno);
  const std::string owner = read_lock_text(lock);
  const int lacking = lock_file(lock, owner);
  // File systems without locks (some Lustre and NFS mounts) return ENOSYS, ENOLCK or EOPNOTSUPP. Then the text decides.
  if (lacking != 0 && (lacking == EWOULDBLOCK || !lock_owner_is_gone(owner))) {
    ::close(lock);
    refuse(path, owner, name);
  }
  const SlurmJob job = slurm_job();
  const std::string text = cat(host_name(), " pid ", ::getpid(),
                               job.in_slurm() ? cat(" job ", job.id, " restart ", job.restarts) : "", "\n");
  if (::ftruncate(lock, 0) != 0 || ::pwrite(lock, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const int reason = errno;
    ::close(lock);
    fail(path, "cannot write in the run folder", reason);
  }
  return lock;
}

// The lock file is not removed. Otherwise a third process could lock a new file while a second process waits for the
// old one.
void release_lock(int lock) {
  [[maybe_unused]] const int truncated = ::ftruncate(lock, 0);
  ::close(lock);
}

// Writes a test file. Thus the user learns before step 0, and not at the first checkpoint, that the folder cannot be
// written or that its disk is full.
void probe(const std::string& path) {
  constexpr std::size_t bytes = 1 << 20;
  const std::string file = cat(path, "/", probe_name);
  write_file_atomically(file, std::string(bytes, 'x'));
  ::unlink(file.c_str());
}

// Returns the folder that run.dir or run.id names. "" if neither is given.
std::string stated_folder(const Experiment& experiment) {
  const RunConfig& run = experiment.run;
  if (!run.dir.empty() || run.id.empty()) return run.dir;
  return (fs::path("results") / experiment.name / run.id).string();
}

// Removes the folder of a new run that failed, if it contains only the lock of this process.
void remove_unless_used(const std::string& path) {
  std::error_code ignored;
  if (!is_empty(path)) return;
  fs::remove(fs::path(path) / run_lock, ignored);
  fs::remove(path, ignored);
}

// Returns the folder's path without links such as results/NAME/latest. If the folder is results/NAME/ID, that is the
// result, because become_latest() needs this form. Otherwise the result is the whole path.
std::string short_name(const fs::path& folder) {
  std::error_code failed;
  const fs::path whole = fs::canonical(folder, failed);
  if (failed) return folder.string();
  const fs::path usual = fs::path("results") / whole.parent_path().filename() / whole.filename();
  return fs::equivalent(usual, whole, failed) ? usual.string() : whole.string();
}

// Returns whether a run or `import` has written in the folder. Any one of these files is enough to go on with a run:
// `import` writes only a checkpoint, and a user may have lost the others.
bool has_records(const fs::path& folder) {
  std::error_code failed;
  if (fs::exists(folder / run_record_name, failed) || fs::exists(folder / run_metrics_name, failed)) return true;
  for (fs::directory_iterator file(folder / "checkpoints", failed), end; !failed && file != end; file.increment(failed))
    if (file->path().extension() == ".h5") return true;
  // A folder that cannot be listed may hold checkpoints. The error of listing them is clearer than that of their
  // absence.
  return failed && failed != std::errc::no_such_file_or_directory && failed != std::errc::not_a_directory;
}

}  // namespace

bool is_kept_name(std::string_view name) {
  constexpr std::string_view kept[] = {"bench", "reference", "reporting", "studies"};
  return std::ranges::count(kept, name) > 0;
}

bool holds_a_run(const std::string& folder) {
  std::error_code failed;
  for (const char* name : {run_record_name, run_experiment_name, run_metrics_name, "checkpoints"})
    if (fs::status(fs::path(folder) / name, failed).type() != fs::file_type::not_found) return true;
  return false;
}

void check_run_place(const Experiment& experiment) {
  if (!experiment.run.dir.empty()) return;
  if (is_kept_name(experiment.name))
    throw Error(cat("name is '", experiment.name, "', expected another name: results/", experiment.name,
                    " belongs to the program"),
                "change name, or say with run.dir where the run goes");
  if (experiment.run.id == "latest") throw Error("run.id: 'latest' is the name of the link to the newest run");
}

std::string why_folder_is_taken(const Experiment& experiment) {
  const std::string path = stated_folder(experiment);
  if (path.empty()) return "";
  try {
    check_contents(path, false);
  } catch (const Error& error) {
    return cat(error.what(), "; ", error.hint());
  }
  return "";
}

std::string run_folder_path(const Experiment& experiment, bool resume) {
  check_run_place(experiment);
  if (std::string path = stated_folder(experiment); !path.empty()) return path;
  const fs::path folder = fs::path("results") / experiment.name;
  if (resume) {
    std::error_code code;
    const fs::path target = fs::read_symlink(folder / "latest", code);
    if (code) {
      throw Error(cat((folder / "latest").string(), ": no earlier run of '", experiment.name, "' to resume"),
                  "leave out --resume to start a new run, or set run.dir or run.id");
    }
    return (target.is_absolute() ? target : folder / target).string();
  }
  make_folder(folder.string());
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  for (int attempt = 1;; ++attempt) {
    const std::string path = (folder / (attempt == 1 ? std::string(stamp) : cat(stamp, "-", attempt))).string();
    if (::mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) fail(path, "cannot make the run folder", errno);
  }
}

RunSource source_of_run(ExperimentArguments source, bool resume) {
  std::error_code ignored;
  fs::path folder = source.path;
  const bool is_folder = fs::is_directory(folder, ignored);
  if (!is_folder) folder = folder.has_parent_path() ? folder.parent_path() : ".";
  const bool has_experiment = fs::exists(folder / run_experiment_name, ignored);
  const bool is_run = has_experiment && has_records(folder);
  if (fs::status(source.path, ignored).type() == fs::file_type::not_found && !source.path.ends_with(".yaml") &&
      !source.path.ends_with(".yml"))
    throw Error(cat(source.path, ": there is no such folder or file, expected a run's folder or an experiment file"),
                "runs are in results/<name>/, and experiments in configs/");
  if (is_folder && !is_run)
    throw Error(cat(source.path, " is a folder without ",
                    has_experiment ? "run.json, metrics.jsonl and checkpoints" : "experiment.yaml",
                    ", expected a run's folder or an experiment file"),
                "name the file, for example configs/names.yaml");
  if (is_folder && !resume)
    throw Error(cat(source.path, " is the folder of a run, which only --resume goes on with"),
                cat("add --resume, or train its experiment again: ", (folder / run_experiment_name).string()));
  if (!is_run || (!is_folder && fs::path(source.path).filename() != run_experiment_name)) return {source, ""};
  source.path = (folder / run_experiment_name).string();
  const bool names_folder = std::ranges::any_of(source.overrides, [](const std::string& text) {
    return text.starts_with("run.dir=") || text.starts_with("run.id=");
  });
  if (resume && !names_folder) return {source, short_name(folder)};
  // The stored run.dir and run.id name this folder, which a new run must not use.
  source.overrides.insert(source.overrides.begin(), {"run.dir=", "run.id="});
  return {source, ""};
}

RunFolder::RunFolder(const std::string& path, bool resume)
    : RunFolder(path, resume ? Contents::of_a_run : Contents::of_a_new_run) {}

std::unique_ptr<RunFolder> RunFolder::claim(const std::string& path, const std::function<bool()>& look) {
  if (!look()) return nullptr;
  try {
    std::unique_ptr<RunFolder> folder(new RunFolder(path, Contents::of_a_trial));
    release_lock(take_lock(path, run_lock));  // ranks of a study that was killed may still write a checkpoint
    return look() ? std::move(folder) : nullptr;
  } catch (const FolderInUse&) {
    return nullptr;
  }
}

RunFolder::RunFolder(const std::string& path, Contents contents)
    : path_(path), lock_name_(contents == Contents::of_a_trial ? trial_lock : run_lock) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  const bool resume = contents != Contents::of_a_new_run;
  // Nothing is checked for a trial, because another process of the study may be writing its first files.
  const auto check = [&] {
    if (contents != Contents::of_a_trial) check_contents(path_, resume);
  };
  check();
  make_folder(path_);
  lock_ = take_lock(path_, lock_name_);
  try {
    check();  // checked again: another job may have used the folder before this one got the lock
    if (contents != Contents::of_a_trial) probe(path_);  // the trial's run does it
  } catch (...) {
    if (!resume) remove_unless_used(path_);
    ::close(lock_);
    throw;
  }
}

void RunFolder::keep_lock() const {
  if (!has_lost_its_name(lock_, cat(path_, "/", lock_name_))) return;
  const int again = take_lock(path_, lock_name_);
  ::close(std::exchange(lock_, again));
  log_warning(path_, "/", lock_name_, ": the lock was removed while this run works in the folder; it is locked again");
}

void RunFolder::become_latest() const {
  if (fs::exists(fs::path(path_) / trial_file_name)) return;
  const fs::path folder = fs::path(path_).lexically_normal();
  const fs::path name_folder = folder.parent_path();
  if (folder.is_absolute() || name_folder.parent_path() != "results") return;
  const std::string link = (name_folder / "latest").string();
  const std::string temporary = cat(link, ".tmp.", ::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(folder.filename().c_str(), temporary.c_str()) != 0 || ::rename(temporary.c_str(), link.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    log_warning(link, ": cannot point the link to the run folder: ", std::strerror(reason),
                "; continue this run by its folder: ringtrain train ", path_, " --resume");
  }
}

RunFolder::~RunFolder() {
  release_lock(lock_);
}

bool lock_owner_is_gone(const std::string& text) {
  if (text.empty()) return true;
  std::istringstream words(text);
  std::string host, word;
  pid_t pid = 0;
  if (!(words >> host >> word >> pid) || pid <= 0) return true;  // the text is cut off, so its writer has died
  if (is_of_an_earlier_life(text)) return true;
  return host == host_name() && ::kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace ringtrain
