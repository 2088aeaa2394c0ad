#include "run/run_end.h"

#include "base/cat.h"
#include "base/table.h"

namespace ringtrain {

std::optional<RunEnd> target_end(const StopConfig& stop, double validation_loss, double validation_accuracy) {
  const bool is_loss = stop.target_metric == "validation_loss",
             is_accuracy = stop.target_metric == "validation_accuracy";
  if (is_loss && validation_loss <= stop.target_value) return RunEnd{RunEnd::Cause::target, validation_loss};
  if (is_accuracy && validation_accuracy >= stop.target_value)
    return RunEnd{RunEnd::Cause::target, validation_accuracy};
  return std::nullopt;
}

std::string end_word(const RunEnd& end, const StopConfig& stop) {
  switch (end.cause) {
    case RunEnd::Cause::target:
      return target_reached;
    case RunEnd::Cause::seconds:
      return "stop.seconds";
    case RunEnd::Cause::recorded_order:
      return "end of the recorded order";
    case RunEnd::Cause::all_steps:
      break;
  }
  return stop.target_metric.empty() ? "all steps done" : "target not reached";
}

std::string describe_end(const RunEnd& end, const StopConfig& stop) {
  const std::string value = with_digits(stop.target_value, 15);
  if (end.cause == RunEnd::Cause::target)
    return cat(stop.target_metric, " reached ", value, " (", with_digits(end.reached, 5), ")");
  std::string text;
  if (end.cause == RunEnd::Cause::seconds) text = "stop.seconds " + with_digits(stop.seconds, 15) + " is over";
  if (end.cause == RunEnd::Cause::recorded_order) text = "the recorded order of arrival ends here";
  if (stop.target_metric.empty()) return text;
  return cat(text, text.empty() ? "" : ", and ", "stop.target_value ", value, " was not reached");
}

}  // namespace ringtrain
