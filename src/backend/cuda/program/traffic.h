// What the commands of a program read and write in the device's memory, and compute.
#pragma once

#include "backend/cuda/program/schedule.h"

namespace ringtrain::cuda {

// Of one pass of a micro-batch, and of the refresh of the program's own weights after an update.
struct Traffic {
  double forward_bytes = 0, backward_bytes = 0, weights_bytes = 0;
  double flops = 0;  // of the pass
};

// Of a planned schedule.
Traffic traffic_of(const Schedule& schedule);

}  // namespace ringtrain::cuda
