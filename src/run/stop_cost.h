// The time that a stop takes. After a request to stop, a run finishes its step and the next one, and writes a
// checkpoint.
#pragma once

#include <cstdint>

namespace ringtrain {

// The size of a checkpoint, and the seconds for writing it and reading it back.
struct CheckpointCost {
  std::int64_t bytes = 0;
  double seconds = 0;
};

// The cost of a stop, measured by the steps and checkpoints of a run.
struct StopCost {
  CheckpointCost checkpoint;
  double step_seconds = 0;  // 0: not measured yet
};

}  // namespace ringtrain
