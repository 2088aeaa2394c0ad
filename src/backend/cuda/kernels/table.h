// The runtime device finds the addresses of compiled kernels here.
#pragma once

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// Returns the address that cudaLaunchKernel takes. A kernel without a type of its own is found under fp32. Returns null
// when there is no such kernel.
const void* kernel_function(Kernel kernel, Type type);

}  // namespace ringtrain::cuda
