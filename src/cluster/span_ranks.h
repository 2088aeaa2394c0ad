// Neighbouring ranks that share the virtual workers of batch norm. A virtual worker is a part of the batch over which
// batch norm computes its statistics. The number of ranks that share one is a power of two (BatchPlan::span).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/group_ranks.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// Returns the `span` ranks that share a virtual worker with this rank: [span t, span (t + 1)) for t = rank / span,
// rounded down. `span` is a power of two that divides the group's size. Collective over the group. Throws Error
// for another span, and the errors of check_spans().
std::unique_ptr<GroupRanks> make_span_ranks(const RankGroup& group, int span);

// Throws Error if ranks that would share a worker are on different nodes. Such ranks exchange numbers twice in every
// batch norm of every pass, and the other ranks wait meanwhile. `hosts` has the host of every rank, in rank order.
void check_spans(const std::vector<std::string>& hosts, int span);

}  // namespace ringtrain
