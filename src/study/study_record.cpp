#include "study/study_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/files.h"
#include "base/host_name.h"
#include "base/json.h"
#include "run/folder.h"
#include "run/record.h"

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

}  // namespace ringtrain
