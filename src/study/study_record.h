// Writes study.json, which lists all trials of a study in one file. Any process of any job can make the file again at
// any time, because it is made from the trials' own files (trial.json).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/trial_record.h"

namespace ringtrain {

struct StudyFacts {
  std::string name, experiment, file, text;  // `file`: path of the study's file; `text`: its content
  std::string commit;                        // commit of the program
  std::string search = "";                   // search_json() for search: halving; "" for search: all
};

class StudyRecord {
 public:
  // `trials` has all trials of the study, in its order. Only the study's part of each record is used.
  StudyRecord(std::string folder, StudyFacts facts, std::vector<TrialRecord> trials);

  const std::string& folder() const { return folder_; }
  std::string folder_of(const TrialRecord& trial) const { return folder_ + "/" + trial.name; }
  // Returns the states at the time of the last look().
  const std::vector<TrialRecord>& trials() const { return trials_; }
  std::int64_t count(TrialState state) const;

  // Reads the trials' files that have changed. Returns the places of these trials.
  std::vector<std::size_t> look();
  // Calls look() and writes study.json. A lock lets one process at a time do this, so an older state never replaces a
  // newer one. Throws Error.
  void write();

 private:
  std::string folder_;
  StudyFacts facts_;
  std::vector<TrialRecord> trials_;
  std::vector<std::int64_t> seen_;  // for each trial's file: a number that changes when the file changes
};

}  // namespace ringtrain
