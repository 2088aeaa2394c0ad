#include "parallel/stage_ranks.h"

namespace ringtrain {

StageRanks::StageRanks(const RankGroup& group, int stages, std::size_t chunk_bytes, const SumChoice& choice)
    : stage_(group.rank() % stages),
      stages_(stages),
      replica_(group.rank() / stages),
      replicas_(group.size() / stages),
      over_replicas_(make_mpi_communicator(*group.part(stage_), chunk_bytes, 0x7fffffff, choice)),
      over_stages_(make_mpi_communicator(*group.part(replica_), chunk_bytes, 0x7fffffff, choice)),
      links_(make_links(group)) {}

void StageRanks::abort(const std::string& why) {
  over_replicas_->abort(why);
  over_stages_->abort(why);
}

UpdateShare StageRanks::share() {
  return {.sum = [this](std::span<double> norms) { over_stages_->sum(norms); }};
}

}  // namespace ringtrain
