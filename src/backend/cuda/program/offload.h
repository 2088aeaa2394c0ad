// Offloading keeps activations in the host's memory until the backward pass (vDNN, Rhu et al. 2016). An activation is
// copied out after its last write in the forward pass. It is copied back, into other memory, before its first use in
// the backward pass. The copies run in a stream of their own.
//
//   compute   conv1 | layer1.0 | ... | loss | ... | layer1.0 backward | conv1 backward
//   copies           conv1 out | layer1.0 out         layer1.0 back | conv1 back
//
// Predicted times decide which activations are offloaded, and early layers come first. An activation is chosen when the
// link to the host can copy it out during the forward pass and back in time during the backward pass. An activation
// that would come back too late stays on the device. `stretch` allows both passes to take that many times as long, so
// that more can be offloaded. Commands then wait for copies.
#pragma once

#include <cstdint>

#include "backend/cuda/program/rates.h"

namespace ringtrain::cuda {

struct OffloadRates {
  Rates device;     // the device that runs the commands
  double link = 0;  // bytes a second in each direction
  double stretch = 1;
  double copy_seconds = 1e-5;                  // latency of a copy
  double command_seconds = 3e-6;               // overhead of every command
  std::int64_t least = std::int64_t{1} << 20;  // bytes; smaller activations stay
};

// Holds predicted times of a pass of one micro-batch.
struct OffloadTimes {
  double forward = 0, backward = 0;  // seconds of computing
  double out = 0, back = 0;          // seconds of copying in parallel
};

}  // namespace ringtrain::cuda
