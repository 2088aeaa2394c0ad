// The time that a stop takes. After a request to stop, a run finishes its step and the next one, and writes a
// checkpoint. A job must therefore get a signal so long before its end: the N of Slurm's --signal=USR1@N.
#pragma once

#include <cstdint>
#include <string>

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

// Returns twice the time of a checkpoint and two steps, plus 10 s for launcher and scheduler, rounded up to a multiple
// of 10 s. The two steps are the one in which the signal arrives and the one whose sums tell all ranks. The time is
// doubled because a file system may be slow at times.
int lead_seconds(const StopCost& cost);

// Returns a text such as "to stop, this run needs the time of two steps of 0.2 s and of a checkpoint (98 MiB in 1.3 s,
// measured now)". In a Slurm job it goes on: ". To stop in time, this job needs --signal=USR1@20 or more".
std::string describe(const StopCost& cost, bool is_new, bool in_slurm);

}  // namespace ringtrain
