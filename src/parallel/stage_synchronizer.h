// The synchronizer of a pipeline. Each stage sums its gradients over the replicas, and all ranks sum the counters.
#pragma once

#include "parallel/stage_ranks.h"
#include "parallel/synchronizer.h"

namespace ringtrain {

// `all` connects every rank.
std::unique_ptr<Synchronizer> make_stage_synchronizer(Communicator& all, StageRanks& stages, std::span<float> gradients,
                                                      std::int64_t bucket_elements, bool on_device);

}  // namespace ringtrain
