// Shows the progress of a run: a progress bar on a terminal, plain lines in a batch log.
#pragma once

#include <cstdint>
#include <string>

#include "run/recorder.h"

namespace ringtrain {

// Rates over about the last five seconds, so that neither one slow step nor an old phase of the run shows.
class SmoothedRate {
 public:
  void add(std::int64_t samples, double seconds);
  double samples_per_second() const { return seconds_ > 0 ? samples_ / seconds_ : 0; }
  double seconds_per_step() const { return steps_ > 0 ? seconds_ / steps_ : 0; }

 private:
  double samples_ = 0, seconds_ = 0, steps_ = 0;  // decaying sums
};

// 59 -> "59s", 192 -> "3:12", 3723 -> "1:02:03", 100000 -> "1d 03:46".
std::string readable_duration(double seconds);

// One line of exactly `width` - 1 columns or less: "step 120/400 [=====>      ] 1,234 samples/s loss 1.2345 ETA 0:12";
// narrow terminals lose the bar first, then the rest from the right. total_steps 0: unknown, no bar and no ETA.
std::string progress_bar(const StepRecord& record, std::int64_t total_steps, const SmoothedRate& rate, int width);
// The same for a batch log, with epoch, learning rate and gradient norm. `samples_per_second` is that of the steps
// since the line before; `rate` gives the ETA.
std::string progress_line(const StepRecord& record, std::int64_t total_steps, const SmoothedRate& rate,
                          double samples_per_second);

// Columns of the terminal behind stdout; 0 when stdout is none, or lines go to a file (set_log_file()). (mpirun gives
// its ranks pseudo-terminals whatever its own output is; those of no size stand for a file or a pipe.)
int terminal_width();

class ProgressDisplay {
 public:
  // log_every_steps 0: about twenty lines over the run.
  ProgressDisplay(std::int64_t total_steps, std::int64_t log_every_steps);
  ~ProgressDisplay();  // as finish()
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;
  void step(const StepRecord& record, std::int64_t new_samples);
  void line(const std::string& text);
  void make_room();  // wipes the bar for a line that another writes; the next step draws it again
  void finish();     // shows the last step, if it has not been, and leaves the bar on its line

 private:
  void draw(const StepRecord& record);

  std::int64_t total_steps_, log_every_steps_;
  SmoothedRate rate_;
  double interval_samples_ = 0, interval_seconds_ = 0;  // since the last line
  StepRecord last_;
  bool any_step_ = false, bar_shown_ = false, last_shown_ = true;
  double drawn_at_ = 0;
};

}  // namespace ringtrain
