// Messages between devices by NCCL's sends and receives.
//
// A lane is one direction between two ranks. Each lane is a communicator of its own, with a stream of its own. A send
// waits in its stream until the other rank receives. Nothing else is in that stream, so two messages that cross cannot
// wait for each other. There are few lanes, and each takes few blocks of a GPU, so all of them run beside the passes.
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
  int rank = 0;  // in the group of `host`
  // All that this rank takes part in. Lanes are made in this order, and each needs both ranks: a chain of ranks, each of
  // which begins with the one before it, comes through.
  std::vector<Lane> lanes = {};
  double timeout_seconds = 480;  // for a start, and for a message from when this rank's part is ready
  std::function<void()> poll = {};  // throws when a rank of the group has failed
};

// Collective over the ranks of the lanes. `api` is called for each lane: NCCL's functions. `device`, `host` and the
// functions outlive it. Throws Error, on every rank that sees it, when a rank does not come in time.
std::unique_ptr<Links> make_nccl_links(const std::function<const NcclApi&()>& api, cuda::Device& device, Links& host,
                                       const NcclLinkOptions& options);

}  // namespace ringtrain
