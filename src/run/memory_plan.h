// Chooses the micro-batch and the activations that are kept, so that a rank's memory stays below a limit:
//
//   limit = model + b x pass + overhead
//
// model: weights, gradients, optimizer state, and a program's copies of the weights. pass: the bytes per sample of a
// micro-batch of b samples; it is smaller if blocks are recomputed (Chen et al. 2016). overhead: the data set, the
// fixed part of the loaders, the checkpoint. Nothing is estimated. Each candidate is planned, and its bytes are counted
// as the run will allocate them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Returns whether memory.recompute is auto: the plan then chooses the blocks, so that the pass fits below the limit.
bool chooses_recomputation(const Experiment& experiment);

// Returns the bytes that the limit applies to. On a CPU it is all memory of the rank, on a GPU the memory of the GPU.
std::int64_t limited_bytes(const std::vector<MemoryItem>& memory, const Backend& backend);

// Marks the blocks that memory.recompute names, before the size of a pass is chosen. Throws Error for an unknown name.
void mark_named_blocks(const Experiment& experiment, Graph& graph);

// Carries out memory.*: marks the recomputed blocks in the plan's graph and sets the micro-batch.
// `wanted_micro_batch` is batch.micro or the micro-batch of a checkpoint. 0 leaves it open. The largest micro-batch
// that fits below memory.limit_gib is then chosen. Without memory.limit_gib, the limit is the memory of the GPU, and
// the backend chooses an open micro-batch, unless its choice does not fit. With memory.recompute: auto, blocks are
// added in the order of falling bytes per flop until the pass fits. Each block that the pass also fits without is then
// removed, and a block is replaced by a cheaper one as long as the pass still fits. If the micro-batch is open, blocks
// are recomputed only if the smallest micro-batch does not fit otherwise. With memory.offload, as many activations are
// copied to the host as can be copied during the passes. More are copied only if the micro-batch does not fit
// otherwise. Throws Error, with the largest micro-batch that fits, if the wanted one does not fit. Throws Error also
// for keys that this machine does not support.
void plan_memory(RunPlan& plan, Backend& backend, std::int64_t wanted_micro_batch);

// Returns the largest micro-batch that the planned run could have. Without a limit it is all rows of a rank.
std::int64_t largest_micro_batch(const RunPlan& plan, Backend& backend);

// Returns the formula with its numbers and the largest micro-batch of each choice. Returns "" if no key memory.* is
// used.
std::string describe_memory_choices(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
