// This file has the rates that GPUs reach. They give the least time that a command can take, and guesses where nothing
// is timed.
#pragma once

#include "backend/cuda/device/device.h"
#include "backend/cuda/types.h"

namespace ringtrain::cuda {

struct Rates {
  double bytes, flops;      // per second
  bool is_estimate = true;  // false: they were measured on GPUs of this name
};

// Returns the rate of copies between a GPU and page-locked memory of its host, in bytes per second and direction. It is
// about three quarters of the nominal rate of PCIe 4 x16 (A100: 32 GB/s) or PCIe 5 x16 (H100 and later: 64 GB/s).
double host_link_rate(int compute_capability);

// Returns the rates of memory and of matrix products for guesses, which must be the same on all GPUs of a compute
// capability. They are about three quarters of the numbers in the data sheets (A100, H200, B200). `compute_capability`
// is 90 for 9.0.
Rates rates_of(int compute_capability, Math math);

// Returns the rates that GPUs of this name have reached. The names of an H100 (80 GB HBM3) and of an H200 are known.
// For another GPU, or a part of one (MIG), it returns the estimate for its compute capability.
Rates rates_of(const DeviceFacts& device, Math math);

// Returns the least seconds for this work: the longer of its products and its memory traffic.
double bound_seconds(double flops, double bytes, const Rates& rates);

}  // namespace ringtrain::cuda
