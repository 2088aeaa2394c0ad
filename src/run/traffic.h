// Describes the bytes that a training step reads and writes in a GPU's memory, for `plan`.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda/program/schedule.h"

namespace ringtrain {

// Returns a text with the bytes per sample of a pass with `micro_batch` samples. The copies of the weights are written
// once for `rows_per_rank` samples. `sites` is the number of places where kernels may be joined. `timed` is the number
// of places that are joined because a search on such a GPU has timed them.
std::string describe_traffic(const cuda::Traffic& traffic, std::int64_t micro_batch, std::int64_t rows_per_rank,
                             std::int64_t sites, std::int64_t timed);

}  // namespace ringtrain
