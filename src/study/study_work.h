// The work of a job's ranks for a study: the queue of its trials, in the order in which the ranks take them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "study/halving.h"
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

// All ranks have the same StudyWork. Rank 0 makes it from the files and sends it to the other ranks.
struct StudyWork {
  std::string folder;  // results/<study>
  StudyFacts facts;
  std::vector<TrialRecord> trials;  // all trials of the study; of their progress, only `starts` is sent
  std::vector<QueuedTrial> queue;   // longest first, so that the last trials are short and no rank waits long
  bool knows_seconds = false;
  bool asks_for_gpus = false;                   // some trial of the queue may run on GPUs
  std::string job;                              // unique name of the job
  std::uint32_t number = 0;                     // number of this job in the roster's file
  std::map<std::string, DatasetIndex> indices;  // the index of each data set, by its prefix
  std::vector<Rung> rungs;                      // the rungs of search: halving; empty with search: all
  std::vector<std::string> points;              // the point of each trial, for the rungs

  std::string serialize() const;
  static StudyWork deserialize(const std::string& text);
};

// Throws Error if trials have begun and `resume` is false.
void check_folder(const std::string& folder, bool resume);

// Throws Error if the trial's folder holds a run of a different experiment: one in which a key that decides the result
// had another value.
void check_same_result(const std::string& folder, const Trial& trial);

// Returns the trial's experiment, with run.dir set to the trial's folder.
Experiment experiment_in(const std::string& folder, const Trial& trial);

}  // namespace ringtrain
