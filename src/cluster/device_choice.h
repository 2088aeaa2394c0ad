// Chooses the GPU of each rank: one GPU for one rank, by the rank's number on its node and by the GPUs that it may see.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

class RankGroup;

// A rank of a node and the devices that it sees (CUDA_VISIBLE_DEVICES, Slurm's bindings), in the order of their
// ordinals.
struct RankDevices {
  int rank = 0;  // of the group
  std::vector<std::string> uuids;
};

// The ordinal of the device of ranks[node_rank]. Every rank takes the first device of its list that no earlier rank has
// taken. Where all ranks have the same list, the n-th rank takes the n-th device. Where the launcher has given each
// rank one device, the rank takes that device. With `may_share` (sums go through host memory), a rank that finds all
// devices taken takes the device that the fewest ranks have. Throws Error, which names host, ranks and devices, where
// there are too few devices or none.
int choose_device(const std::vector<RankDevices>& ranks, int node_rank, const std::string& host, bool may_share);

// The same for this rank of the group's ranks on its node; the error is thrown on all ranks of the node alike.
int choose_together(const std::vector<RankDevices>& ranks, const RankGroup& group, bool may_share);

// The same for this rank, with what all ranks of the node see. Collective over the group.
int choose_device(const RankGroup& group, const std::vector<std::string>& visible_uuids, bool may_share);

// The devices that the ranks of this node see. Processes that move on to other groups use it to keep their device.
struct NodeDevices {
  std::vector<RankDevices> ranks;  // by node rank
  int node_rank = 0;
  std::string host;
};
NodeDevices gather_devices(const RankGroup& group, const std::vector<std::string>& visible_uuids);  // collective
// The error is thrown on all ranks of the node alike.
int choose_device(const NodeDevices& node, bool may_share);

// Whether NCCL accepts two ranks on one device. It does when the environment tells it that the ranks are on different
// hosts (NCCL_HOSTID, for tests) or that sharing is intended (NCCL_MULTI_RANK_GPU_ENABLE, since NCCL 2.30).
bool nccl_may_share_devices();

}  // namespace ringtrain
