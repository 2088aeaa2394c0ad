// How many samples a pass on a device takes where the experiment leaves it open.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/backend.h"

namespace ringtrain::cuda {

// A lower bound of what a training program holds per sample: the values that its backward pass reads again.
std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision);

// The largest divisor of demand.rows that is a multiple of demand.group and whose programs fit in `room` bytes; the
// smallest where none fits, so that the error comes from the allocation and names what it lacks. `program_bytes`
// compiles, which takes cuDNN a while: it is asked from the largest down, and only where the lower bound fits.
std::int64_t largest_micro_batch(const PassDemand& demand, std::int64_t room, std::int64_t least_bytes_per_sample,
                                 const std::function<std::int64_t(std::int64_t samples)>& program_bytes);

}  // namespace ringtrain::cuda
