// How long before its end a job has to be told, so that it ends with a checkpoint: the N of Slurm's --signal=USR1@N.
#pragma once

#include <string>

#include "run/stop_cost.h"

namespace ringtrain {

// Twice (file systems have bad moments) a checkpoint and the two steps that may pass before it: the one that the signal
// falls into and the one whose sums carry it to all ranks. 10 s more for launcher and scheduler, in whole tens.
int lead_seconds(const StopCost& cost);

// "a stop takes 1.3 s for the checkpoint (98 MiB, trial write) and up to two steps of 0.2 s: ..."
std::string describe(const StopCost& cost, bool is_trial);

}  // namespace ringtrain
