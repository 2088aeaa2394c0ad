// Sums of device vectors, their halves and broadcasts through host memory, where there is no NCCL or several ranks share a GPU: each bucket is
// copied to page-locked memory, summed by an inner communicator (the ring over MPI) and copied back.
//
//   compute   ... bucket final |e                                   |wait f| update
//   down                        wait e | to host |h
//   host                                          ring
//   up                                                 to device |f
#pragma once

#include <memory>

#include "backend/cuda/device/device.h"
#include "cluster/communicator.h"

namespace ringtrain {

// `device` and `host` outlive it. Sums advance inside done(), finish() and poll(): the host takes part in them.
std::unique_ptr<DeviceCommunicator> make_staged_communicator(cuda::Device& device, Communicator& host);

}  // namespace ringtrain
