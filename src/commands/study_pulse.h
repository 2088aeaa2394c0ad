// A thread that runs while a study's trials run. On every rank it notices if another rank was asked to stop. On rank 0
// of the job it also shows the progress of the study.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "cluster/roster.h"
#include "study/study_work.h"

namespace ringtrain {

class StudyPulse {
 public:
  // Rank 0 has a `record` and shows the progress; other ranks have none.
  StudyPulse(Roster& roster, const StudyWork& work, int ranks, std::optional<StudyRecord> record);
  ~StudyPulse();  // shows the last changes
  StudyPulse(const StudyPulse&) = delete;
  StudyPulse& operator=(const StudyPulse&) = delete;

 private:
  void beat();
  void pass_on_signals();
  void show();
  void print(const std::string& event);
  std::string progress_text() const;
  std::optional<double> seconds_left() const;

  Roster& roster_;
  const StudyWork& work_;
  const int ranks_;
  std::optional<StudyRecord> record_;
  std::vector<double> since_;  // by place in the queue: the time at which the trial was first seen running
  const int width_;            // width of the terminal; 0: no terminal
  bool announced_ = false, bar_shown_ = false;
  std::mutex mutex_;
  std::condition_variable stop_signal_;
  bool stop_ = false;
  std::thread thread_;
};

// Returns "global-64_seed-2: finished after 200 steps and 12s, best validation loss 1.234".
std::string describe(const TrialRecord& record);

}  // namespace ringtrain
