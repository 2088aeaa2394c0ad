// parallel.replay repeats the order in which the updates of an earlier asynchronous run arrived.
#pragma once

#include "run/plan.h"

namespace ringtrain {

// Reads parallel.replay and goes through the recorded order as the run will, from the position `begin` on. Does nothing
// if the run repeats no order. Throws Error if the file cannot be read, or if the run cannot follow it to its end: it
// was recorded by another number of workers, with another batch, with other evaluations and checkpoints, with larger
// staleness than parallel.max_staleness allows, or it is too short.
void check_replay(const RunPlan& plan, const Position& begin);

}  // namespace ringtrain
