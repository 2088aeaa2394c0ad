// Computes how long before its end a job must get a signal so that it can write a checkpoint. This is the N of Slurm's
// --signal=USR1@N.
// --signal=USR1@N.
#pragma once

#include <string>

#include "run/stop_cost.h"

namespace ringtrain {

// Twice the time of a checkpoint and two steps, plus 10 s for launcher and scheduler, rounded up to a multiple of 10.
// The two steps are the one in which the signal arrives and the one whose sums tell all ranks. Twice, because a file
// system may be slow at times.
int lead_seconds(const StopCost& cost);

// "a stop takes 1.3 s for the checkpoint (98 MiB, trial write) and up to two steps of 0.2 s: ..."
std::string describe(const StopCost& cost, bool is_trial);

}  // namespace ringtrain
