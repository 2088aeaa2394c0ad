#include "study/study_work.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine_share.h"
#include "checkpoint/resume.h"
#include "config/reader.h"
#include "config/yaml_document.h"
#include "run/folder.h"
#include "run/run_record.h"

namespace ringtrain {
namespace {

// Returns a number that changes when a file is replaced, and 0 for a missing file. A new file has another modification
// time or length, and usually another inode.
std::int64_t version_of(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return 0;
  const auto mixed = static_cast<std::uint64_t>(s.st_mtim.tv_sec) * 1'000'000'007u +
                     static_cast<std::uint64_t>(s.st_mtim.tv_nsec) * 31u + static_cast<std::uint64_t>(s.st_ino) * 17u +
                     static_cast<std::uint64_t>(s.st_size);
  return static_cast<std::int64_t>(mixed | 1u);
}

// A lock for writers of study.json. On a file system without locks it has no effect. Each writer has a temporary file
// of its own in any case.
class WriteLock {
 public:
  explicit WriteLock(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (file_ < 0) throw Error(cat(path, ": cannot write: ", std::strerror(errno)), advice_for_writing(errno, path));
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~WriteLock() { ::close(file_); }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;

 private:
  int file_;
};

}  // namespace

StudyRecord::StudyRecord(std::string folder, StudyFacts facts, std::vector<TrialRecord> trials)
    : folder_(std::move(folder)), facts_(std::move(facts)), trials_(std::move(trials)), seen_(trials_.size(), 0) {}

std::int64_t StudyRecord::count(TrialState state) const {
  return std::ranges::count(trials_, state, &TrialRecord::state);
}

std::vector<std::size_t> StudyRecord::look() {
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    const std::string folder = folder_of(trials_[i]);
    const std::int64_t version = version_of(cat(folder, "/", trial_file_name));
    if (version == seen_[i]) continue;
    seen_[i] = version;
    if (read_trial_record(folder, trials_[i])) changed.push_back(i);
  }
  return changed;
}

void StudyRecord::write() {
  const WriteLock lock(folder_ + "/.study.lock");
  look();
  Json json = {{"name", facts_.name}, {"experiment", facts_.experiment}, {"file", facts_.file}};
  if (!facts_.commit.empty()) json["commit"] = facts_.commit;
  json["updated"] = utc_time();
  for (std::size_t s = 0; s < std::size(trial_states); ++s)
    json["counts"][trial_states[s]] = count(static_cast<TrialState>(s));
  if (!facts_.search.empty()) json["search"] = Json::parse(facts_.search);
  json["trials"] = Json::array();
  for (const TrialRecord& trial : trials_) json["trials"].push_back(Json::parse(to_json(trial)));
  json["text"] = facts_.text;

  const std::string temporary = cat(folder_, "/.study.json.", host_name(), ".", ::getpid(), ".tmp");
  publish_written(temporary, folder_ + "/study.json", [&] {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << json_text(json, 1) << '\n';
    out.close();
    if (!out)
      throw Error(cat(temporary, ": cannot write: ", std::strerror(errno)), advice_for_writing(errno, temporary));
  });
}

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
