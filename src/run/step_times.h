// The time of a rank's steps, split into input, passes, communication and update.
#pragma once

#include <vector>

#include "cluster/communicator.h"

namespace ringtrain {

// Seconds, of one step or of many. `communication`: the rank waited for others; `server`: the part of it in which it
// waited for parameter servers. What a step has beside these five parts is not counted.
struct StepTimes {
  double input = 0, forward = 0, backward = 0, communication = 0, update = 0, server = 0;
  StepTimes& operator+=(const StepTimes& other);
  double computing() const { return forward + backward + update; }
};

// Every rank's, on rank 0; nothing elsewhere. Collective.
std::vector<StepTimes> gather_times(const StepTimes& mine, Communicator& communicator);

}  // namespace ringtrain
