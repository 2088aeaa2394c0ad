// Chooses the micro-batch and the activations that are kept, so that a rank's memory stays below a limit:
//
//   limit = model + b x pass + overhead
//
// model: weights, gradients, optimizer state, a program's copies of the weights. pass: what a sample of a micro-batch
// of b takes, less where blocks are recomputed (Chen et al. 2016). overhead: data set, loaders' fixed part, checkpoint.
// Nothing is estimated: each candidate is planned and its bytes are counted as the run will take them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Of a CPU rank: all that it takes. Of a GPU: what lies in the GPU's memory.
std::int64_t limited_bytes(const std::vector<MemoryItem>& memory, const Backend& backend);

// The blocks that memory.recompute names, for the first look at how large a pass may be. Throws Error for an unknown
// name.
void mark_named_blocks(const Experiment& experiment, Graph& graph);

// Carries out memory.*: marks the recomputed blocks in the plan's graph and sets the micro-batch.
// `wanted_micro_batch`: batch.micro, or what a checkpoint has recorded; 0: open, and then it is the largest that fits
// below memory.limit_gib. With memory.recompute: auto the blocks are those that cost least: by falling bytes per flop
// until it fits, then without each one that it fits without; without a limit, a GPU's memory is it. An open micro-batch
// is recomputed only where the smallest does not fit without. With memory.offload what travels is what the passes
// hide, and only for a micro-batch that does not fit then as much more as it takes. Throws Error, with the largest
// micro-batch that fits, when it does not; and for keys that this machine cannot follow.
void plan_memory(RunPlan& plan, Backend& backend, std::int64_t wanted_micro_batch);

// The largest micro-batch that the planned run could have; all rows of a rank without a limit.
std::int64_t largest_micro_batch(const RunPlan& plan, Backend& backend);

// The formula with its numbers and the largest micro-batch of each choice; "" where memory.* is not used.
std::string describe_memory_choices(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
