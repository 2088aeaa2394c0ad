// This file has rough rates of GPUs, for guesses when nothing is timed.
#pragma once

#include "backend/cuda/types.h"

namespace ringtrain::cuda {

struct Rates {
  double bytes, flops;  // per second
};

// Returns the rate of copies between a GPU and page-locked memory of its host, in bytes per second and direction. It is
// about three quarters of the nominal rate of PCIe 4 x16 (A100: 32 GB/s) or PCIe 5 x16 (H100 and later: 64 GB/s).
double host_link_rate(int compute_capability);

// Returns the rates of memory and of matrix products. They are about three quarters of the numbers in the data sheets
// (A100, H200, B200). `compute_capability` is 90 for 9.0.
Rates rates_of(int compute_capability, Math math);

}  // namespace ringtrain::cuda
