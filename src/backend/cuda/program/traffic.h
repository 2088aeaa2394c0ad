// Counts the bytes that a program's commands read and write in the device's memory, and their operations.
#pragma once

#include "backend/cuda/program/schedule.h"

namespace ringtrain::cuda {

// Holds the traffic of one pass of a micro-batch, and of the refresh of the program's own weights after an update.
struct Traffic {
  double forward_bytes = 0, backward_bytes = 0, weights_bytes = 0;
  double flops = 0;  // forward and backward pass
};

// `schedule` must be planned.
Traffic traffic_of(const Schedule& schedule);

}  // namespace ringtrain::cuda
