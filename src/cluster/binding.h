// Which cores and GPUs each rank may use: gathered, printed in a few lines, and checked for ranks of a node that were
// given the same ones by accident.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

class RankGroup;

// CPUs that the calling thread may run on, in ascending order; never empty.
std::vector<int> own_cpus();
// The cores that they belong to: hardware threads of a core have the number of its first.
std::vector<int> cores_of(const std::vector<int>& cpus);

// "0-3,8" <-> 0 1 2 3 8
std::string cpu_list(const std::vector<int>& cpus);
std::vector<int> parse_cpu_list(const std::string& text);

// The share of node rank `me` in the CPUs of its set: one that k ranks of the node may use counts as 1/k.
double share_of_cpus(const std::vector<std::vector<int>>& cpus_of_ranks, std::size_t me);

struct RankBinding {
  int rank = 0;  // of the group
  std::string host;
  std::vector<int> cpus, cores;
  std::string gpus;  // the one that it computes on, else what it is allowed to see; empty: not known
};

// Collective over the group. Whole on its rank 0, in rank order, and empty elsewhere.
std::vector<RankBinding> gather_bindings(const RankGroup& group, const std::string& gpus);

// A line per kind of node: "node1, node2: 2 ranks each, CPUs 0-3 | 4-7, GPUs 0 | 1".
std::vector<std::string> describe_bindings(const std::vector<RankBinding>& ranks);

// A sentence per node and set of cores whose ranks are in each other's way, with their numbers: masks that overlap
// without being the same, or more ranks than cores in a mask. Ranks that have one mask with cores enough for all share
// them out evenly (unbound ranks: --cpu-bind=none) and are in nobody's way.
std::vector<std::string> shared_cores(const std::vector<RankBinding>& ranks);

// Throws Error when the lists in CUDA_VISIBLE_DEVICES leave ranks of this node without a GPU of their own, naming them;
// says nothing where a rank's is not set. For programs that cannot ask CUDA. Collective over the group.
void check_visible_devices(const RankGroup& group);

}  // namespace ringtrain
