// Describes the bytes that a training step reads and writes in a GPU's memory, for `plan`.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda/program/traffic.h"

namespace ringtrain {

// Bytes per sample of a pass of `micro_batch` samples; the weights' copies are refreshed once for `rows_per_rank`.
// `sites`: places where kernels may be joined; `timed`: those that are joined as a search on such a GPU timed them.
std::string describe_traffic(const cuda::Traffic& traffic, std::int64_t micro_batch, std::int64_t rows_per_rank,
                             std::int64_t sites, std::int64_t timed);

}  // namespace ringtrain
