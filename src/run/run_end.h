// Says why a run ended by itself.
#pragma once

#include <optional>
#include <string>

#include "config/experiment.h"

namespace ringtrain {

struct RunEnd {
  enum class Cause { all_steps, target, seconds, recorded_order } cause = Cause::all_steps;
  double reached = 0;  // for target: the value of stop.target_metric
};

// Returns the end of a run whose evaluation has measured these values; nothing if they do not reach the target, or if
// there is none. A value that is NaN reaches no target.
std::optional<RunEnd> target_end(const StopConfig& stop, double validation_loss, double validation_accuracy);

inline constexpr const char* target_reached = "target reached";

// Returns the word for run.json: target_reached, "target not reached", "all steps done", "stop.seconds" or "end of
// the recorded order".
std::string end_word(const RunEnd& end, const StopConfig& stop);

// Returns the words for the log: "validation_loss reached 1.42 (1.4187)". "" if the run has done all its steps and has
// no target.
std::string describe_end(const RunEnd& end, const StopConfig& stop);

}  // namespace ringtrain
