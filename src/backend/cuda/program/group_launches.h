// What is lost where an operation runs once for each group of samples, instead of once for all: a fused operation takes
// one group's statistics. It decides between the two where nothing is timed.
#pragma once

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

// Bytes of memory traffic that take as long as what is lost by `launches` launches of this operation, against one of
// `launches` times its samples: a launch fills and drains the GPU, and a group may have too few tiles of its matrix
// product for all multiprocessors. 0 for one launch.
double bytes_lost_to_groups(const DeviceFacts& device, const DnnOperation& group, std::int64_t launches);

}  // namespace ringtrain::cuda
