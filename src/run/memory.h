// The memory of a run's ranks: its bytes, and the passes that fit into it. Nothing is estimated: the bytes are counted
// as the run will allocate them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Returns the exact bytes of memory that one rank needs, item by item: vectors, programs, loaders and the data set.
std::vector<MemoryItem> rank_memory(const RunPlan& plan, Backend& backend, int rank = 0);

// Returns the bytes that memory.limit_gib applies to. On a CPU it is all memory of the rank, on a GPU the memory of the
// GPU.
std::int64_t limited_bytes(const std::vector<MemoryItem>& memory, const Backend& backend);

// Returns the bytes of the arrays in a checkpoint of the run, in memory and nearly in the file: weights, statistics,
// optimizer state and carried hidden state.
std::int64_t checkpoint_bytes(const RunPlan& plan);

// ---- The passes that fit
//
// The micro-batch and the activations that are kept are chosen so that a rank's memory stays below a limit:
//
//   limit = model + b x pass + overhead
//
// model: weights, gradients, optimizer state, and a program's copies of the weights. pass: the bytes per sample of a
// micro-batch of b samples; it is smaller if blocks are recomputed (Chen et al. 2016). overhead: the data set, the
// fixed part of the loaders, the checkpoint. Each candidate is planned, and its bytes are counted.

// Returns whether memory.recompute is auto: the plan then chooses the blocks, so that the pass fits below the limit.
bool chooses_recomputation(const Experiment& experiment);

// Returns the names of the blocks that a pass computes again.
std::vector<std::string> recomputed_blocks(const Graph& graph);

// Marks the blocks that memory.recompute names, before the size of a pass is chosen. Throws Error for an unknown name.
void mark_named_blocks(const Experiment& experiment, Graph& graph);

// The part of RunPasses that memory decides.
struct FittingPasses {
  MicroBatchChoice micro_batch_choice;
  Graph graph;
};

// Carries out memory.* for a plan with the preferred micro-batch. If that is open, the largest micro-batch that fits
// below memory.limit_gib is chosen. Without memory.limit_gib, the limit is the memory of the GPU, and the preferred
// micro-batch is kept, unless it does not fit. With memory.recompute: auto, blocks are added in the order of falling
// bytes per flop until the pass fits. Each block that the pass also fits without is then removed, and a block is
// replaced by a cheaper one as long as the pass still fits. If the micro-batch is open, blocks are recomputed only if
// the smallest micro-batch does not fit otherwise. With memory.offload, as many activations are copied to the host as
// can be copied during the passes. More are copied only if the micro-batch does not fit otherwise. Throws Error, with
// the largest micro-batch that fits, if the preferred one is not open and does not fit. Throws Error also for keys that
// this machine does not support.
FittingPasses passes_that_fit(const RunPlan& preferred, Backend& backend);

// Returns the formula with its numbers and the largest micro-batch of each choice. Returns "" if no key memory.* is
// used.
std::string describe_memory_choices(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
