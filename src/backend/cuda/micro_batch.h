// How many samples a pass on a GPU takes.
#pragma once

#include <cstdint>
#include <functional>

#include "backend/backend.h"

namespace ringtrain::cuda {

// A lower bound of what a training program holds per sample: the values that its backward pass reads again.
std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision);

// The largest multiple of `unit` (batch.worker, or 1) up to `most` whose memory is at most `budget` bytes; `unit` where
// not even that fits, so that the error comes from the allocation and names what it lacks. `bytes` must not fall with
// the micro-batch; it is asked a few times only, as a compiled program has to answer.
std::int64_t largest_micro_batch(std::int64_t unit, std::int64_t most, std::int64_t budget,
                                 const std::function<std::int64_t(std::int64_t micro_batch)>& bytes);

}  // namespace ringtrain::cuda
