// Counts the bytes that a program's commands read and write in the device's memory, their operations, and the least
// time that they take.
#pragma once

#include "backend/cuda/program/rates.h"
#include "backend/cuda/program/schedule.h"

namespace ringtrain::cuda {

// Holds the traffic of one pass of a micro-batch, and of the refresh of the program's own weights after an update.
struct Traffic {
  double forward_bytes = 0, backward_bytes = 0, weights_bytes = 0;
  double flops = 0;  // forward and backward pass
};

// Holds the least seconds of one pass of a micro-batch, forward and backward, and of the refresh of the program's own
// weights: the sum of the bounds of the commands, because they run one after the other. Blocks that are recomputed
// count twice.
struct LeastSeconds {
  double pass = 0, weights = 0;
};

// `schedule` must be planned.
Traffic traffic_of(const Schedule& schedule);
LeastSeconds least_seconds_of(const Schedule& schedule, const Rates& rates);

}  // namespace ringtrain::cuda
