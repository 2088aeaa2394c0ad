// parallel.replay repeats the order in which the updates of an earlier asynchronous run arrived.
#pragma once

#include <cstdint>
#include <optional>

#include "run/plan.h"

namespace ringtrain {

// Reads parallel.replay and goes through the recorded order as the run will, from the position `begin` on. A run that
// pauses does so at the first step that reaches `pause_samples`; 0: it does not pause. Returns the step after which the
// run stops because the order ends there. It is the step of `begin` if the order has no updates after it. This is
// allowed only if the run may also end by stop.seconds or a target. Returns nothing if the order is long enough, or if
// the run repeats no order. Throws Error if the file cannot be read, or if the run cannot follow it to its end: it was
// recorded by another number of workers, with another batch, with other evaluations and checkpoints, with larger
// staleness than parallel.max_staleness allows, or it is too short.
std::optional<std::int64_t> check_replay(const RunPlan& plan, const Position& begin, std::int64_t pause_samples = 0);

}  // namespace ringtrain
