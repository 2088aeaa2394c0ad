// The cores and GPUs that each rank may use. The functions of this file gather and describe them, and find ranks of one
// node that were given the same cores or GPUs by accident.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

class RankGroup;

// Returns the name of this machine's processor, as the kernel gives it: "AMD EPYC 7763 64-Core Processor". "": not
// known.
std::string processor_model();

// Returns the cores that these CPUs belong to. A core has the number of its first hardware thread.
std::vector<int> cores_of(const std::vector<int>& cpus);

// These two functions convert between the numbers 0 1 2 3 8 and the text "0-3,8".
std::string cpu_list(const std::vector<int>& cpus);
std::vector<int> parse_cpu_list(const std::string& text);

// Returns the number of CPUs that node rank `me` has for itself. A CPU that k ranks of the node may use counts as 1/k.
double share_of_cpus(const std::vector<std::vector<int>>& cpus_of_ranks, std::size_t me);

// Returns the number of CPUs of each of `ranks` ranks that share `cpus` CPUs on `cores` cores as tests/mpirun.sh shares
// them: a rank has whole cores, or there are more ranks than cores and no rank is bound. At least 1.
int cpus_of_each_rank(std::size_t cpus, std::size_t cores, std::int64_t ranks);

struct RankBinding {
  int rank = 0;  // rank in the group
  std::string host;
  std::vector<int> cpus, cores;
  std::string gpus;  // GPU on which the rank computes, or the GPUs that it may see; empty: not known
};

// Collective over the group. Rank 0 gets the bindings of all ranks in rank order; the other ranks get an empty list.
std::vector<RankBinding> gather_bindings(const RankGroup& group, const std::string& gpus);

// Returns a line for each kind of node: "node1, node2: 2 ranks, CPUs 0-3 | 4-7, GPUs 0 | 1".
std::vector<std::string> describe_bindings(const std::vector<RankBinding>& ranks);

// Returns one sentence for each set of cores for which ranks compete, with the numbers of these ranks. Ranks compete if
// their sets of cores overlap without being equal, or if they have the same cores and there are fewer cores than ranks.
// Ranks with the same cores and enough of them do not compete, because the kernel spreads the ranks evenly. This is so
// for ranks that are not bound to cores (--cpu-bind=none).
std::vector<std::string> shared_cores(const std::vector<RankBinding>& ranks);

// Throws Error, which names the rank, if the lists in CUDA_VISIBLE_DEVICES leave a rank of this node without a GPU of
// its own. Checks nothing if a rank has no such list. Programs that cannot ask CUDA call this. Collective over the
// group.
void check_visible_devices(const RankGroup& group);

// Chooses one GPU for each rank, by the rank's number on its node and by the GPUs that the rank may see.

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

// Does the same for this rank, after it has gathered what all ranks of the node see. All ranks of the node throw the
// same error. Collective over the group.
int choose_device(const RankGroup& group, const std::vector<std::string>& visible_uuids, bool may_share);

// Returns whether NCCL accepts two ranks on one device. It does if the environment says that the ranks are on different
// hosts (NCCL_HOSTID, for tests) or that sharing is intended (NCCL_MULTI_RANK_GPU_ENABLE, since NCCL 2.30).
bool nccl_may_share_devices();

}  // namespace ringtrain
