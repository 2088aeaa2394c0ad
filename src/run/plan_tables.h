// Prints the plan of a run as tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {
namespace cuda {
struct Traffic;
}

// Returns the tables that `plan` prints in full and `train` in short, in the order of the plan's stages (plan.h).
// `backend` is Backend::describe(). `memory` is rank_memory().
std::string describe_run(const RunPlan& plan, const std::string& backend, const std::vector<MemoryItem>& memory);
std::string describe_parameters(const RunPlan& plan);
std::string describe_memory(const std::vector<MemoryItem>& memory);

// Returns a table of the bytes that a training step reads and writes in a GPU's memory, per sample of a pass with
// `micro_batch` samples. The copies of the weights are written once for `rows_per_rank` samples. `sites` is the number
// of places where kernels may be joined. `timed` is the number of places that are joined because a search on such a GPU
// has timed them.
std::string describe_traffic(const cuda::Traffic& traffic, std::int64_t micro_batch, std::int64_t rows_per_rank,
                             std::int64_t sites, std::int64_t timed);

}  // namespace ringtrain
