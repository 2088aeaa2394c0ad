// Measures the differences between the clocks of the nodes. Large differences make file times and logs misleading, and
// they break the time-limited tokens of batch systems.
#pragma once

#include <vector>

#include "cluster/rank_group.h"

namespace ringtrain {

// Returns the hosts of a group in the order of their first ranks.
std::vector<std::string> distinct_hosts(const std::vector<std::string>& host_of_rank);

struct ClockOffset {
  double seconds = 0;     // the host's time of day minus that of rank 0's host
  double round_trip = 0;  // seconds of the quickest exchange; the error of the offset is at most half of it
};

// Collective. Rank 0 gets the offset of every distinct host; the other ranks get an empty list. The method is
// Cristian's (1989): it assumes that an answer was written half a round trip before it arrived.
std::vector<ClockOffset> clock_offsets(const RankGroup& group);

}  // namespace ringtrain
