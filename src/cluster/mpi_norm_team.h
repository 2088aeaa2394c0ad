// Teams of neighbouring ranks that share the virtual workers of batch norm. A virtual worker is a part of the batch
// over which batch norm computes its statistics. The size of a team is a power of two (BatchPlan::span).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/norm_team.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// Returns this rank's team, the `span` ranks [span t, span (t + 1)) for t = rank / span, rounded down. `span` is a
// power of two that divides the group's size. Collective over the group. Throws Error for another span, and the errors
// of check_norm_teams().
std::unique_ptr<NormTeam> make_mpi_norm_team(const RankGroup& group, int span);

// Throws Error if ranks of a team are on different nodes. Such ranks exchange numbers twice in every
// batch norm of every pass, and the other ranks wait meanwhile. `hosts` has the host of every rank, in rank order.
void check_norm_teams(const std::vector<std::string>& hosts, int span);

}  // namespace ringtrain
