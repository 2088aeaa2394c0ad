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
// `wanted_micro_batch` is batch.micro or the micro-batch of a checkpoint. 0 leaves it open. The largest micro-batch
// that fits below memory.limit_gib is then chosen. Without a limit, the limit is the memory of the GPU. With
// memory.recompute: auto, blocks are added in the order of falling bytes per flop until the pass fits. Each block that
// the pass also fits without is then removed. If the micro-batch is open, blocks are recomputed only if the smallest
// micro-batch does not fit otherwise.
// With memory.offload, as many activations are copied as the passes hide. More are copied only if the micro-batch does
// not fit otherwise.
// Throws Error, with the largest micro-batch that fits, if the wanted one does not fit. Throws Error also for keys that
// this machine does not support.
void plan_memory(RunPlan& plan, Backend& backend, std::int64_t wanted_micro_batch);

// The largest micro-batch that the planned run could have; all rows of a rank without a limit.
std::int64_t largest_micro_batch(const RunPlan& plan, Backend& backend);

// The formula with its numbers and the largest micro-batch of each choice; "" where memory.* is not used.
std::string describe_memory_choices(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
