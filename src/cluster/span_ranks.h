// A power of two of neighbouring ranks that share the virtual workers of batch norm (BatchPlan::span).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/group_ranks.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// The ranks [span t, span (t + 1)) among which this one is. `span` is a power of two that divides the group's size.
// Collective over the group. Throws what check_spans() throws, and GroupFailed.
std::unique_ptr<GroupRanks> make_span_ranks(const RankGroup& group, int span);

// Throws Error where ranks that would share a worker are on different nodes: they exchange numbers twice in every batch
// norm of every pass, and all others wait. `hosts`: of every rank, in rank order.
void check_spans(const std::vector<std::string>& hosts, int span);

}  // namespace ringtrain
