// What a GPU reaches, roughly: for guesses where nothing is timed.
#pragma once

#include "backend/cuda/types.h"

namespace ringtrain::cuda {

struct Rates {
  double bytes, flops;  // a second
};

// Bytes a second between a GPU and page-locked memory of its host, one way: about nine tenths of PCIe 4 x16 (A100) or
// PCIe 5 x16 (H100 and later).
double host_link_rate(int compute_capability);

// Of memory and of matrix products, about three quarters of the data sheets' numbers (A100, H200, B200).
// `compute_capability`: 90 for 9.0.
Rates rates_of(int compute_capability, Math math);

}  // namespace ringtrain::cuda
