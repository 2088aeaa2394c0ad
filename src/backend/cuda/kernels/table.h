// Addresses of compiled kernels, for the runtime device.
#pragma once

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// What cudaLaunchKernel takes. Kernels without a type of their own are found under fp32. Null: no such kernel.
const void* kernel_function(Kernel kernel, Type type);

}  // namespace ringtrain::cuda
