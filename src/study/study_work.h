// The work of a job for a study, and the study's record: study.json, which lists all trials of the study in one file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/search.h"
#include "study/trial_record.h"
#include "study/trials.h"

namespace ringtrain {

struct StudyFacts {
  std::string name, experiment, file, text;  // `file`: path of the study's file; `text`: its content
  std::string commit;                        // commit of the program
  std::string search = "";                   // search_json() for search: halving; "" for search: all
};

// Writes study.json. Any process of any job can make the file again at any time, because it is made from the trials'
// own files (trial.json).
class StudyRecord {
 public:
  // `trials` has all trials of the study, in its order. Only the study's part of each record is used.
  StudyRecord(std::string folder, StudyFacts facts, std::vector<TrialRecord> trials);

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

// One trial of the job's share.
struct QueuedTrial {
  std::size_t place = 0;   // place in StudyWork::trials
  std::string experiment;  // resolved, with run.dir
  double seconds = 0;      // expected time; without StudyWork::knows_seconds only proportional to it
};

struct StudyWork {
  std::string folder;  // results/<study>
  StudyFacts facts;
  std::vector<TrialRecord> trials;  // all trials of the study, as they were when the job began
  std::vector<QueuedTrial> queue;   // in the order in which they begin: most ranks first, and of those the longest
                                    // first, so that no rank waits long
  bool knows_seconds = false;
  std::string job;                    // unique name of the job
  std::vector<TrialSearch> searches;  // empty with search: all
};

// Throws Error if trials have begun and `resume` is false.
void check_folder(const std::string& folder, bool resume);

// Throws Error if the trial's folder holds a run of a different experiment: one in which a key that decides the result
// had another value.
void check_same_result(const std::string& folder, const Trial& trial);

// Returns the trial's experiment, with run.dir set to the trial's folder.
Experiment experiment_in(const std::string& folder, const Trial& trial);

}  // namespace ringtrain
