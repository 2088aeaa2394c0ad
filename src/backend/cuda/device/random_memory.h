// Fills memory with random numbers before work is timed on it. Zeros would give wrong times: a GPU needs less power for
// them, so its clock stays higher.
#pragma once

#include <cstdint>

#include "backend/cuda/device/device.h"
#include "backend/cuda/types.h"

namespace ringtrain::cuda {

// Queues the work in the stream. The numbers are normally distributed, with a standard deviation of 1/8, and repeat
// after 1 MiB. Read as fp32, they are finite for every `type`.
void fill_random(Device& device, void* memory, std::int64_t bytes, Type type, Stream stream);

}  // namespace ringtrain::cuda
