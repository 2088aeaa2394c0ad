// The passes of a pipeline's stage. The stage sends and receives activations and gradients while it computes.
#pragma once

#include "parallel/pass_order.h"
#include "parallel/stage_ranks.h"

namespace ringtrain {

// Each end of the stage has two buffers per direction. While one micro-batch is computed, the next one is received and
// the previous one is sent.
std::unique_ptr<PassOrder> make_stage_passes(StageRanks& ranks, Program& program, const std::string& schedule,
                                             std::int64_t slots);

}  // namespace ringtrain
