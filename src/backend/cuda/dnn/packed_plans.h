// PlanAnswer is cuDNN's answer about one operation. Answers have this one form everywhere: for a described device, in
// the cache, in messages to other ranks and in a run's folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ringtrain::cuda {

// Holds cuDNN's answer about one operation on one device.
struct PlanAnswer {
  bool found = false;
  std::int64_t workspace_bytes = 0;
  std::string engine = {};  // when found: cuDNN's name for the engine and its knobs
  std::string why = {};     // when refused: the reason in cuDNN's words
  int timed = 0;            // the plan was the fastest of up to this many; 0: cuDNN's first guess
  std::string bytes = {};   // the plan as cuDNN serialises it, 0.1 to 0.3 MB; empty for a device that is only described
  bool operator==(const PlanAnswer&) const = default;
};

// Writes "found", the workspace and the engine, or "refused", 0 and the reason, with `separator` between them. The
// engine and the reason contain neither the separator nor a line break.
std::string to_line(const PlanAnswer& answer, char separator);
PlanAnswer parse_answer(const std::string& line, char separator);  // throws Error

// The key of an entry is DnnOperation::key().
using PackedPlans = std::map<std::string, PlanAnswer>;
std::string pack(const PackedPlans& plans);
// Reads plans until it meets something that it does not understand. The plans after that place are made anew.
PackedPlans unpack(const std::string& text);

}  // namespace ringtrain::cuda
