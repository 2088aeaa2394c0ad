// Sends messages between devices with NCCL.
//
// A lane is one direction between two ranks. Each lane has a communicator and a stream of its own. A send waits in its
// stream until the other rank receives. Nothing else is in that stream, so two messages in opposite directions cannot
// wait for each other. There are few lanes, and each uses few blocks of a GPU, so all lanes run while passes run.
//
// In the picture, stage s computes the forward passes F0 and F1 and the backward pass B0. Events connect the streams:
// e0 says that F0 has ended, r0 says that the message for B0 has arrived.
//
//   compute   F0 |e0        F1 |e1 ...   |wait r0| B0
//                 \             \            /
//   lane s>s+1     wait e0|send 0   ...     /
//   lane s+1>s      receive 0 |r0 ---------'
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/device/device.h"
#include "cluster/links.h"
#include "cluster/nccl_library.h"

namespace ringtrain {

struct NcclLinkOptions {
  int rank = 0;  // rank in the group of `host`
  // All lanes of this rank. They are made in this order, and each needs both of its ranks. A chain of ranks does not
  // deadlock if each rank begins with the lane to the rank before it.
  std::vector<Lane> lanes = {};
  double timeout_seconds = 480;  // for a start, and for a message after this rank's part is ready
};

// Collective over the ranks of the lanes. `api` is called for each lane and returns NCCL's functions. `device`, `host`
// and the functions must outlive the result. Throws Error, on every rank that notices it, if a rank is not in time.
std::unique_ptr<Links> make_nccl_links(const std::function<const NcclApi&()>& api, cuda::Device& device, Links& host,
                                       const NcclLinkOptions& options);

}  // namespace ringtrain
