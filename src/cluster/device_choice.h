// Chooses one GPU for each rank, by the rank's number on its node and by the GPUs that the rank may see.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

class RankGroup;

// A rank of a node and the devices that it sees (CUDA_VISIBLE_DEVICES, Slurm's bindings), in the order of their
// ordinals.
struct RankDevices {
  int rank = 0;  // rank in the group
  std::vector<std::string> uuids;
};

// Returns the ordinal of the device of ranks[node_rank]. Every rank takes the first device of its list that no earlier
// rank has taken. If all ranks have the same list, the n-th rank takes the n-th device. If the launcher has given each
// rank one device, the rank takes that device. With `may_share` (sums go through host memory), a rank that finds all
// devices taken takes the device with the fewest ranks. Throws Error, which names host, ranks and devices, if there are
// too few devices or none.
int choose_device(const std::vector<RankDevices>& ranks, int node_rank, const std::string& host, bool may_share);

// Does the same for this rank among the group's ranks on its node. All ranks of the node throw the same error.
int choose_together(const std::vector<RankDevices>& ranks, const RankGroup& group, bool may_share);

// Does the same for this rank, after it has gathered what all ranks of the node see. Collective over the group.
int choose_device(const RankGroup& group, const std::vector<std::string>& visible_uuids, bool may_share);

// Returns whether NCCL accepts two ranks on one device. It does if the environment says that the ranks are on different
// hosts (NCCL_HOSTID, for tests) or that sharing is intended (NCCL_MULTI_RANK_GPU_ENABLE, since NCCL 2.30).
bool nccl_may_share_devices();

}  // namespace ringtrain
