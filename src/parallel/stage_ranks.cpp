#include "parallel/stage_ranks.h"

#include <algorithm>
#include <utility>

namespace ringtrain {

StageRanks::StageRanks(const RankGroup& group, int stages, std::size_t chunk_bytes, const SumChoice& choice,
                       const StageDevices& devices)
    : stage_(group.rank() % stages),
      stages_(stages),
      replica_(group.rank() / stages),
      replicas_(group.size() / stages),
      over_replicas_(make_mpi_communicator(*group.split(stage_), chunk_bytes, 0x7fffffff, choice)),
      over_stages_(make_mpi_communicator(*group.split(replica_), chunk_bytes, 0x7fffffff, choice)),
      links_(make_links(group)) {
  if (devices.sums && replicas_ > 1) device_sums_ = devices.sums(*over_replicas_);
  if (!devices.links) return;
  std::vector<Lane> lanes;
  for (int cut = std::max(0, stage_ - 1); cut < std::min(stages_ - 1, stage_ + 1); ++cut) {
    const int before = rank_of(replica_, cut), after = rank_of(replica_, cut + 1);
    lanes.push_back({before, after, activations});
    lanes.push_back({after, before, gradients});
  }
  crossings_ = devices.links(*links_, group.rank(), std::move(lanes));
}

void StageRanks::poll() {
  crossings().poll();
  over_replicas().poll();
}

void StageRanks::abort(const std::string& why) {
  if (crossings_) crossings_->abort(why);
  over_replicas().abort(why);
}

UpdateShare StageRanks::share() {
  return {.sum = [this](std::span<double> norms) { over_stages_->sum(norms); }};
}

}  // namespace ringtrain
