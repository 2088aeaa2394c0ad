// A stage's passes: what crosses its ends is sent and received while it computes.
#pragma once

#include "parallel/pass_order.h"
#include "parallel/stage_ranks.h"

namespace ringtrain {

// Two buffers per direction and end: while one micro-batch is computed, the next one arrives and the one before leaves.
std::unique_ptr<PassOrder> make_stage_passes(StageRanks& ranks, Program& program, const std::string& schedule,
                                             std::int64_t slots);

}  // namespace ringtrain
