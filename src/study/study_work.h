// The work of a job for a study: the queue of its trials, in the order in which they begin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/search.h"
#include "study/study_file.h"
#include "study/study_record.h"
#include "study/trials.h"

namespace ringtrain {

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
  std::vector<QueuedTrial> queue;   // most ranks first, and of those the longest first, so that no rank waits long
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
