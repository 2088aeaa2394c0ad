// Shows the progress of a run: a progress bar on a terminal, plain lines in a batch log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "run/reports.h"

namespace ringtrain {

// Rates over about the last five seconds, so that neither a single slow step nor an earlier phase of the run dominates.
class SmoothedRate {
 public:
  // `bound_seconds` is the least time of the step; 0: not known.
  void add(std::int64_t samples, double seconds, double bound_seconds = 0);
  double samples_per_second() const { return seconds_ > 0 ? samples_ / seconds_ : 0; }
  double seconds_per_step() const { return steps_ > 0 ? seconds_ / steps_ : 0; }
  double share_of_bound() const { return seconds_ > 0 ? bound_seconds_ / seconds_ : 0; }  // 0: not known

 private:
  double samples_ = 0, seconds_ = 0, bound_seconds_ = 0, steps_ = 0;  // decaying sums
};

inline constexpr double longest_duration = 1e9;  // seconds; nobody waits for more

// Returns seconds as a text: 59 becomes "59s", 192 "3:12", 3723 "1:02:03", and 100000 "1d 03:46". Longer than
// longest_duration is "unknown".
std::string readable_duration(double seconds);

// Returns one line of at most `width` - 1 columns:
// "step 120/400 [===>        ]  1,234 samples/s  41 % of bound  loss 1.2345  ETA 12s".
// On a narrow terminal the bar is dropped first, then the other parts from the right. If total_steps is 0 (unknown),
// there is no bar and no ETA.
std::string progress_bar(const StepReport& report, std::int64_t total_steps, const SmoothedRate& rate, int width);

// Returns the columns of the terminal at stdout. Returns 0 if stdout is not a terminal or if TERM is "dumb". A terminal
// without a size counts as a file or a pipe, because mpirun always gives its ranks pseudo-terminals.
int terminal_width();

class ProgressDisplay {
 public:
  // log_every_steps 0 means about twenty lines over the whole run, or a line every 100 steps if total_steps is 0.
  ProgressDisplay(std::int64_t total_steps, std::int64_t log_every_steps);
  ~ProgressDisplay();  // calls finish()
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;
  void step(const StepReport& report);
  void line(const std::string& text);
  void make_room();  // clears the bar for a line of other code; the next step draws it again
  void finish();     // shows the last step if it was not shown, and ends the bar's line

 private:
  void draw();  // the last step

  std::int64_t total_steps_, log_every_steps_;
  SmoothedRate rate_;
  double interval_samples_ = 0, interval_seconds_ = 0, interval_bound_seconds_ = 0;  // since the last line
  std::optional<StepReport> last_;
  bool bar_shown_ = false, last_shown_ = true;
  double drawn_at_ = 0;
};

}  // namespace ringtrain
