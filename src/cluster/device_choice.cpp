#include "cluster/device_choice.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/error.h"
#include "cluster/rank_group.h"

namespace ringtrain {
namespace {

constexpr const char* kAdvice =
    "start at most as many ranks on a node as it has GPUs (mpirun --npernode, srun --ntasks-per-node), let each rank "
    "see them (srun --gpus-per-node, and srun instead of mpirun; CUDA_VISIBLE_DEVICES), or set "
    "communication.library: mpi, which sums through host memory and lets several ranks share a GPU, or "
    "machine.device: cpu";

std::string visible_here() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  return text != nullptr ? cat("CUDA_VISIBLE_DEVICES=", text) : "CUDA_VISIBLE_DEVICES is not set";
}

using Takers = std::map<std::string, std::vector<int>>;

// Returns "GPU-a (rank 0), GPU-b (rank 1)".
std::string who_took(const std::vector<std::string>& uuids, const Takers& takers) {
  std::string text;
  for (const std::string& uuid : uuids)
    text += cat(text.empty() ? "" : ", ", uuid, " (rank ", takers.at(uuid).front(), ")");
  return text;
}

[[noreturn]] void none_left(const std::vector<RankDevices>& ranks, std::size_t me, const Takers& takers,
                            const std::string& host) {
  const std::vector<std::string>& seen = ranks[me].uuids;
  const bool one_list = std::ranges::all_of(ranks, [&](const RankDevices& r) { return r.uuids == seen; });
  if (one_list)
    throw Error(
        cat(ranks.size(), " ranks on ", host, ", but ", seen.size(), seen.size() == 1 ? " device" : " devices", " (",
            visible_here(), "): rank ", ranks[me].rank, " is left without one; taken are ", who_took(seen, takers)),
        kAdvice);
  throw Error(cat("rank ", ranks[me].rank, " on ", host, " sees only devices that other ranks have taken: ",
                  who_took(seen, takers), " (", visible_here(), ")"),
              kAdvice);
}

}  // namespace

int choose_device(const std::vector<RankDevices>& ranks, int node_rank, const std::string& host, bool may_share) {
  Takers takers;
  for (std::size_t r = 0;; ++r) {
    const std::vector<std::string>& seen = ranks.at(r).uuids;
    if (seen.empty())
      throw Error(cat("rank ", ranks[r].rank, " on ", host, " sees no GPU (", visible_here(), ")"),
                  "ask the batch system for GPUs (srun --gpus-per-node), check nvidia-smi, or train on the CPU");
    const auto fewest = std::ranges::min_element(
        seen, {}, [&](const std::string& uuid) { return takers.contains(uuid) ? takers[uuid].size() : 0; });
    if (!may_share && takers.contains(*fewest)) none_left(ranks, r, takers, host);
    takers[*fewest].push_back(ranks[r].rank);
    if (r == static_cast<std::size_t>(node_rank)) return static_cast<int>(fewest - seen.begin());
  }
}

int choose_together(const std::vector<RankDevices>& ranks, const RankGroup& group, bool may_share) {
  // Chooses for the last rank first. If any rank gets no device, all ranks throw here, and none makes the run's folder.
  choose_device(ranks, group.node_size() - 1, group.host(), may_share);
  return choose_device(ranks, group.node_rank(), group.host(), may_share);
}

int choose_device(const RankGroup& group, const std::vector<std::string>& visible_uuids, bool may_share) {
  std::string mine;
  for (const std::string& uuid : visible_uuids) mine += uuid + '\n';
  const std::vector<std::string> lists = group.gather_on_node(cat(group.rank(), '\n', mine));
  std::vector<RankDevices> ranks(lists.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    std::istringstream list(lists[r]);
    list >> ranks[r].rank >> std::ws;
    for (std::string uuid; std::getline(list, uuid);) ranks[r].uuids.push_back(uuid);
  }
  return choose_together(ranks, group, may_share);
}

bool nccl_may_share_devices() {
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return std::getenv("NCCL_HOSTID") != nullptr || (shared != nullptr && std::string(shared) == "1");
}

}  // namespace ringtrain
