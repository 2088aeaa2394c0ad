// Collectives on device vectors through host memory, for programs without NCCL and for ranks that share a GPU. Each
// bucket is copied to page-locked memory, summed by an inner communicator (over MPI) and copied back. In the picture,
// e, h and f are events: the bucket is final, is in host memory, and is back on the device.
//
//   compute   ... bucket final |e                                   |wait f| update
//   down                        wait e | to host |h
//   host                                          ring
//   up                                                 to device |f
#pragma once

#include <functional>
#include <memory>

#include "backend/cuda/device/device.h"
#include "backend/norm_team.h"
#include "cluster/communicator.h"

namespace ringtrain {

// `device` and `host` must outlive the communicator. Its sums make progress only inside done(), finish() and poll(),
// because the host takes part in them.
std::unique_ptr<DeviceCommunicator> make_staged_communicator(cuda::Device& device, Communicator& host);

// A team whose ranks exchange their numbers through host memory. In each exchange the host waits for the device, then
// the device for the host. The host calls `poll` while it waits. `device` must outlive the result.
std::unique_ptr<DeviceNormTeam> make_staged_norm_team(cuda::Device& device, std::unique_ptr<NormTeam> host,
                                                      std::function<void()> poll);

}  // namespace ringtrain
