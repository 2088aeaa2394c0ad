// The time that a stop takes. After a request to stop, a run finishes its step and the next one, and writes a
// checkpoint.
#pragma once

#include <cstdint>

namespace ringtrain {

// What a checkpoint takes, and how long its writing (with the reading back) has taken.
struct CheckpointCost {
  std::int64_t bytes = 0;
  double seconds = 0;
};

// Measured at a start by a trial write, at its end by what has been written.
struct StopCost {
  CheckpointCost checkpoint;
  double step_seconds = 0;  // 0: not measured yet
};

}  // namespace ringtrain
