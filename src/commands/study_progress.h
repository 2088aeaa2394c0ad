// Shows the progress of a study: a line at the end of each trial and, on a terminal, a line that is drawn again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "study/study_work.h"

namespace ringtrain {

class StudyProgress {
 public:
  // `ranks` is the number of ranks that can work at the same time.
  StudyProgress(const StudyWork& work, int ranks);

  // Prints what has changed since the last call. Call it again and again.
  void show();
  void end();  // shows the last changes, and ends the terminal's line

 private:
  void print(const std::string& event);
  std::string progress_text() const;
  std::optional<double> seconds_left() const;

  const StudyWork& work_;
  const int ranks_;
  StudyRecord record_;
  std::vector<double> since_;  // by place in the queue: the time at which the trial was first seen running
  const int width_;            // width of the terminal; 0: no terminal
  bool bar_shown_ = false;
};

// Returns "global-64_seed-2: finished after 200 steps and 12s, best validation loss 1.234".
std::string describe(const TrialRecord& record);

}  // namespace ringtrain
