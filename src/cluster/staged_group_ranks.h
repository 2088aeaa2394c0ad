// Ranks that share batch norm's groups and exchange their numbers through host memory.
#pragma once

#include <functional>
#include <memory>

#include "backend/cuda/device/device.h"
#include "backend/device_group_ranks.h"

namespace ringtrain {

// The host waits for the device, and the device for the host. `poll` is called meanwhile. `device` outlives it.
std::unique_ptr<DeviceGroupRanks> make_staged_group_ranks(cuda::Device& device, std::unique_ptr<GroupRanks> host,
                                                          std::function<void()> poll);

}  // namespace ringtrain
