// How many samples a device takes at once where the experiment leaves it open.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/backend.h"

namespace ringtrain::cuda {

// A lower bound of what a training program holds per sample: the maps that the backward pass reads again.
std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision);

// The largest divisor of demand.rows that is a multiple of demand.group and fits `available_bytes`; the smallest where
// none fits. `program_bytes` compiles, so it is asked only where the lower bound fits.
std::int64_t largest_micro_batch(const PassDemand& demand, std::int64_t least_bytes_per_sample,
                                 std::int64_t available_bytes,
                                 const std::function<std::int64_t(std::int64_t micro_batch)>& program_bytes);

}  // namespace ringtrain::cuda
