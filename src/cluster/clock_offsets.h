// How far the clocks of the nodes are apart: file times, logs and tokens of batch systems mislead where they are.
#pragma once

#include <vector>

#include "cluster/rank_group.h"

namespace ringtrain {

// The hosts of a group in the order of their first ranks.
std::vector<std::string> distinct_hosts(const std::vector<std::string>& host_of_rank);

struct ClockOffset {
  double seconds = 0;     // of the host's clock (time of day) before that of rank 0's host
  double round_trip = 0;  // of the quickest of the exchanges; the offset is known to half of it
};

// For every distinct host, on rank 0; empty elsewhere. Collective. Cristian 1989: an answer is taken to have been
// written half a round trip ago.
std::vector<ClockOffset> clock_offsets(const RankGroup& group);

}  // namespace ringtrain
