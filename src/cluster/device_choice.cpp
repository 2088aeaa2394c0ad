#include "cluster/device_choice.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "cluster/mpi_check.h"
#include "cluster/session.h"

namespace ringtrain {
namespace {

constexpr const char* kAdvice =
    "start at most as many ranks on a node as it has GPUs (mpirun --npernode, srun --ntasks-per-node), let each rank "
    "see "
    "them (CUDA_VISIBLE_DEVICES, srun --gpus-per-node), or set communication.library: mpi, which sums through host "
    "memory and lets several ranks share a GPU";

std::string visible_here() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  return text != nullptr ? cat("CUDA_VISIBLE_DEVICES=", text) : "CUDA_VISIBLE_DEVICES is not set";
}

[[noreturn]] void none_left(const std::vector<RankDevices>& ranks, std::size_t me,
                            const std::map<std::string, std::vector<int>>& takers, const std::string& host) {
  const std::vector<std::string>& seen = ranks[me].uuids;
  const bool one_list = std::ranges::all_of(ranks, [&](const RankDevices& r) { return r.uuids == seen; });
  if (one_list)
    throw Error(cat(ranks.size(), " ranks on ", host, ", but ", seen.size(), seen.size() == 1 ? " device" : " devices",
                    " (", visible_here(), "): rank ", ranks[me].rank, " is left without one"),
                kAdvice);
  std::string taken;
  for (const std::string& uuid : seen)
    taken += cat(taken.empty() ? "" : ", ", uuid, " (rank ", takers.at(uuid).front(), ")");
  throw Error(cat("rank ", ranks[me].rank, " on ", host, " sees only devices that other ranks have taken: ", taken,
                  " (", visible_here(), ")"),
              kAdvice);
}

}  // namespace

int choose_device(const std::vector<RankDevices>& ranks, int node_rank, const std::string& host, bool may_share) {
  std::map<std::string, std::vector<int>> takers;
  for (std::size_t r = 0;; ++r) {
    const std::vector<std::string>& seen = ranks.at(r).uuids;
    if (seen.empty())
      throw Error(cat("rank ", ranks[r].rank, " on ", host, " sees no GPU (", visible_here(), ")"),
                  "ask the batch system for GPUs (srun --gpus-per-node), check nvidia-smi, or train on the CPU");
    // Counted one by one: a list may name a device twice.
    const auto fewest = std::ranges::min_element(
        seen, {}, [&](const std::string& uuid) { return takers.contains(uuid) ? takers[uuid].size() : 0; });
    if (!may_share && takers.contains(*fewest)) none_left(ranks, r, takers, host);
    takers[*fewest].push_back(ranks[r].rank);
    if (r == static_cast<std::size_t>(node_rank)) return static_cast<int>(fewest - seen.begin());
  }
}

int choose_device(const Session& session, const std::vector<std::string>& visible_uuids, bool may_share) {
  std::string mine;
  for (const std::string& uuid : visible_uuids) mine += uuid + '\n';
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, session.rank(), MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  const auto count = static_cast<std::size_t>(session.node_size());
  // Rank and length of the list of each rank of the node, then the lists.
  const int own[2] = {session.rank(), static_cast<int>(mine.size())};
  std::vector<int> all(2 * count), lengths(count), offsets(count);
  check_mpi(MPI_Allgather(own, 2, MPI_INT, all.data(), 2, MPI_INT, node), "MPI_Allgather");
  for (std::size_t r = 0; r < count; ++r) lengths[r] = all[2 * r + 1];
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string lists(static_cast<std::size_t>(offsets.back() + lengths.back()), '\0');
  check_mpi(MPI_Allgatherv(mine.data(), own[1], MPI_CHAR, lists.data(), lengths.data(), offsets.data(), MPI_CHAR, node),
            "MPI_Allgatherv");
  MPI_Comm_free(&node);

  std::vector<RankDevices> ranks(count);
  for (std::size_t r = 0; r < count; ++r) {
    ranks[r].rank = all[2 * r];
    std::istringstream list(lists.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
    for (std::string uuid; std::getline(list, uuid);) ranks[r].uuids.push_back(uuid);
  }
  return choose_device(ranks, session.node_rank(), session.host(), may_share);
}

bool nccl_may_share_devices() {
  const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return std::getenv("NCCL_HOSTID") != nullptr || (shared != nullptr && std::string(shared) == "1");
}

}  // namespace ringtrain
