// Activations that wait for the backward pass in the host's memory (Rhu et al. 2016, vDNN): copied out, in a stream of
// their own, behind their last write in the forward pass, and copied back, into other memory, before their first use in
// the backward pass.
//
//   compute   conv1 | layer1.0 | ... | loss | ... | layer1.0 backward | conv1 backward
//   copies           conv1 out | layer1.0 out         layer1.0 back | conv1 back
//
// What travels is decided by predicted times, early layers first: as much as the link to the host carries out while
// the forward pass computes and back while the backward pass does. What would come back too late stays. Where more has
// to travel, both passes may take `stretch` times their time: commands then wait for copies.
#pragma once

#include <cstdint>

#include "backend/cuda/program/rates.h"

namespace ringtrain::cuda {

struct OffloadRates {
  Rates device;     // of the commands
  double link = 0;  // bytes a second, either way
  double stretch = 1;
  double copy_seconds = 1e-5;                  // before a copy's first byte
  double command_seconds = 3e-6;               // of every command
  std::int64_t least = std::int64_t{1} << 20;  // bytes: what is smaller stays
};

// Of a pass of a micro-batch, as predicted.
struct OffloadTimes {
  double forward = 0, backward = 0;  // seconds of computing
  double out = 0, back = 0;          // seconds of copying beside it
};

}  // namespace ringtrain::cuda
