// The cores and GPUs that each rank may use. The functions of this file gather and describe them, and find ranks of one
// node that were given the same cores or GPUs by accident.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

class RankGroup;

// CPUs that the calling thread may run on, in ascending order; never empty.
std::vector<int> own_cpus();
// The cores that these CPUs belong to. A core has the number of its first hardware thread.
std::vector<int> cores_of(const std::vector<int>& cpus);

// "0-3,8" <-> 0 1 2 3 8
std::string cpu_list(const std::vector<int>& cpus);
std::vector<int> parse_cpu_list(const std::string& text);

// The number of CPUs that node rank `me` has for itself. A CPU that k ranks of the node may use counts as 1/k.
double share_of_cpus(const std::vector<std::vector<int>>& cpus_of_ranks, std::size_t me);

struct RankBinding {
  int rank = 0;  // of the group
  std::string host;
  std::vector<int> cpus, cores;
  std::string gpus;  // the GPU that the rank computes on, or else the GPUs that it may see; empty: not known
};

// Collective over the group. Rank 0 gets the bindings of all ranks in rank order; the other ranks get an empty list.
std::vector<RankBinding> gather_bindings(const RankGroup& group, const std::string& gpus);

// A line per kind of node: "node1, node2: 2 ranks each, CPUs 0-3 | 4-7, GPUs 0 | 1".
std::vector<std::string> describe_bindings(const std::vector<RankBinding>& ranks);

// One sentence for each set of cores whose ranks compete for it, with the numbers of these ranks. Ranks compete where
// their masks overlap without being equal, or where a mask has fewer cores than ranks. Ranks with equal masks and
// enough cores do not compete, because the kernel spreads them evenly (unbound ranks: --cpu-bind=none).
std::vector<std::string> shared_cores(const std::vector<RankBinding>& ranks);

// Throws Error, which names the rank, when the lists in CUDA_VISIBLE_DEVICES leave a rank of this node without a GPU of
// its own. Returns without a check where a rank has no such list. For programs that cannot ask CUDA. Collective over
// the group.
void check_visible_devices(const RankGroup& group);

}  // namespace ringtrain
