// The time of a rank's steps, split into input, passes, communication and update.
#pragma once

#include <vector>

#include "cluster/communicator.h"

namespace ringtrain {

// Seconds of one step or of many steps. `communication` is the time that the rank waited for others. `server` is the
// part of `communication` in which the rank waited for parameter servers. Other work of a step is not counted.
struct StepTimes {
  double input = 0, forward = 0, backward = 0, communication = 0, update = 0, server = 0;
  StepTimes& operator+=(const StepTimes& other);
  double computing() const { return forward + backward + update; }
};

// Collective. Returns the times of every rank on rank 0, and nothing on other ranks.
std::vector<StepTimes> gather_times(const StepTimes& mine, Communicator& communicator);

}  // namespace ringtrain
