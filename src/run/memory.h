// The memory of a run's ranks. Nothing is estimated: the bytes are counted as the run will allocate them.
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

}  // namespace ringtrain
