// Ranks that share batch norm's groups and exchange their numbers through host memory.
#pragma once

#include <functional>
#include <memory>

#include "backend/cuda/device/device.h"
#include "backend/device_group_ranks.h"

namespace ringtrain {

// In each exchange the host waits for the device, then the device for the host. The host calls `poll` while it waits.
// `device` must outlive the result.
std::unique_ptr<DeviceGroupRanks> make_staged_group_ranks(cuda::Device& device, std::unique_ptr<GroupRanks> host,
                                                          std::function<void()> poll);

}  // namespace ringtrain
