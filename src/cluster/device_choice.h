// Which GPU a rank takes: one each, by its number among the ranks of its node and what it is allowed to see.
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

// The ordinal of ranks[node_rank]'s device. Every rank takes the first device of its list that no rank before it has
// taken: with one list for all the n-th rank takes the n-th device, and where the launcher has given each rank its own
// it takes that. `may_share`: when all are taken, the one that the fewest have (sums that go through host memory).
// Throws Error that names host, ranks and device where there are too few, or none.
int choose_device(const std::vector<RankDevices>& ranks, int node_rank, const std::string& host, bool may_share);

// The same for this rank of the group's ranks on its node; the error is thrown on all ranks of the node alike.
int choose_together(const std::vector<RankDevices>& ranks, const RankGroup& group, bool may_share);

// The same for this rank, with what all ranks of the node see. Collective over the group.
int choose_device(const RankGroup& group, const std::vector<std::string>& visible_uuids, bool may_share);

// What the ranks of this rank's node see, for processes that work in other groups than this one from now on: a process
// keeps its device whatever its group.
struct NodeDevices {
  std::vector<RankDevices> ranks;  // by node rank
  int node_rank = 0;
  std::string host;
};
NodeDevices gather_devices(const RankGroup& group, const std::vector<std::string>& visible_uuids);  // collective
// The error is thrown on all ranks of the node alike.
int choose_device(const NodeDevices& node, bool may_share);

// NCCL refuses two ranks on one device unless it is told that they are on different hosts (NCCL_HOSTID, for tests) or
// that it is meant (NCCL_MULTI_RANK_GPU_ENABLE, since 2.30). Reads the environment.
bool nccl_may_share_devices();

}  // namespace ringtrain
