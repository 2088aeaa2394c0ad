// Estimates the time that is lost when an operation runs once for each group of samples and not once for all. A fused
// operation takes the statistics of one group, so it runs once per group. The estimate decides between the two when
// nothing is timed.
#pragma once

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

// Compares `launches` launches of this operation with one launch that has `launches` times its samples. The loss is
// returned as the bytes of memory traffic that would take as long. There are two reasons for a loss. Each launch fills
// and drains the GPU. A group may have too few tiles of its matrix product for all multiprocessors. Returns 0 for one
// launch.
double bytes_lost_to_groups(const DeviceFacts& device, const DnnOperation& group, std::int64_t launches);

}  // namespace ringtrain::cuda
