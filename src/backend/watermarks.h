// The watermarks of a program, which tell the trainer which gradients are final (BackwardHooks::ready).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/rounding.h"
#include "nn/parameters.h"

namespace ringtrain {

// Returns the watermark after each step of a program: the gradients [0, watermark) are final then. Step::finishes has
// the names of the parameters whose gradients are final after the step.
template <class Step>
std::vector<std::int64_t> watermarks(const ParameterTable& table, const std::vector<Step>& steps) {
  std::map<std::string, std::size_t> finished;
  for (std::size_t i = 0; i < steps.size(); ++i)
    for (const std::string& name : steps[i].finishes) finished[name] = i;
  std::vector<std::int64_t> marks(steps.size(), 0);
  // A watermark covers a tensor when the gradients of this tensor and of all earlier ones are final. The latest of
  // their steps decides.
  std::size_t latest = 0;
  for (const Parameter& p : table.all()) {
    const auto found = finished.find(p.name);
    if (found == finished.end()) break;
    latest = std::max(latest, found->second);
    marks[latest] = p.offset + round_up(p.count, tensor_alignment);
  }
  for (std::size_t i = 1; i < marks.size(); ++i) marks[i] = std::max(marks[i], marks[i - 1]);
  return marks;
}

}  // namespace ringtrain
