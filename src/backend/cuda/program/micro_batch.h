// Chooses the number of samples of a pass on a device when the experiment does not name it.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/backend.h"

namespace ringtrain::cuda {

// Returns a lower bound of the memory of a training program per sample. It counts values that the backward pass reads
// again.
std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision);

// Returns the largest divisor of demand.rows that is a multiple of demand.group and whose programs fit into `room`
// bytes. When none fits, returns the smallest; the allocation then throws an error that names what is missing.
// `program_bytes` compiles programs, and cuDNN needs seconds for that. It is therefore called from the largest size
// down, and only for sizes whose lower bound fits.
std::int64_t largest_micro_batch(const PassDemand& demand, std::int64_t room, std::int64_t least_bytes_per_sample,
                                 const std::function<std::int64_t(std::int64_t samples)>& program_bytes);

}  // namespace ringtrain::cuda
