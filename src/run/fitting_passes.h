// The passes that fit into the memory of a rank.
//
// The micro-batch and the activations that are kept are chosen so that a rank's memory stays below a limit:
//
//   limit = model + b x pass + overhead
//
// model: weights, gradients, optimizer state, and a program's copies of the weights. pass: the bytes per sample of a
// micro-batch of b samples; it is smaller if blocks are recomputed (Chen et al. 2016). overhead: the data set, the
// fixed part of the loaders, the checkpoint. Each candidate is planned, and its bytes are counted.
#pragma once

#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Returns the names of the blocks that a pass computes again.
std::vector<std::string> recomputed_blocks(const Graph& graph);

// Carries out memory.* for a plan with the preferred micro-batch. If that is open, the largest micro-batch that fits
// below memory.limit_gib is chosen. Without memory.limit_gib, the limit is the memory of the GPU, and the preferred
// micro-batch is kept, unless it does not fit. With memory.recompute: auto, blocks are added in the order of falling
// bytes per flop until the pass fits. Each block that the pass also fits without is then removed, and a block is
// replaced by a cheaper one as long as the pass still fits. If the micro-batch is open, blocks are recomputed only if
// the smallest micro-batch does not fit otherwise. With memory.offload, as many activations are copied to the host as
// can be copied during the passes. More are copied only if the micro-batch does not fit otherwise. Throws Error, with
// the largest micro-batch that fits, if the preferred one is not open and does not fit. Throws Error also for keys that
// this machine does not support.
RunPasses passes_that_fit(const RunPlan& preferred, Backend& backend);

// Returns the formula with its numbers and the largest micro-batch of each choice. Returns "" if no key memory.* is
// used.
std::string describe_memory_choices(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
