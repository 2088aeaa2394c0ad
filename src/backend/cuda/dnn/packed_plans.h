// What is kept of cuDNN's plans, in one form: the answers of a described device, the cache, what ranks are sent, and a
// run's folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ringtrain::cuda {

// What cuDNN said of one operation on one device.
struct PlanAnswer {
  bool found = false;
  std::int64_t workspace_bytes = 0;
  std::string engine = {};  // found: cuDNN's name of the engine and its knobs
  std::string why = {};     // refused: in cuDNN's words
  int timed = 0;            // it was the fastest of up to so many; 0: cuDNN's first guess
  std::string bytes = {};   // cuDNN's own form of the plan, 0.1 to 0.3 MB; none of a device that is only described
  bool operator==(const PlanAnswer&) const = default;
};

// "found", workspace, engine, or "refused", 0, reason, with `separator` between; neither it nor a line's end is inside.
std::string to_line(const PlanAnswer& answer, char separator);
PlanAnswer parse_answer(const std::string& line, char separator);  // throws Error

// By DnnOperation::key().
using PackedPlans = std::map<std::string, PlanAnswer>;
std::string pack(const PackedPlans& plans);
// Stops at what it does not understand: such plans are made anew.
PackedPlans unpack(const std::string& text);

}  // namespace ringtrain::cuda
