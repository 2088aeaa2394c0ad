// The runtime device finds the addresses of compiled kernels here.
#pragma once

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// These return the address that cudaLaunchKernel takes, or null when there is no such kernel. Each is in a file of its
// own (table_fp32.cu and so on).
const void* fp32_kernel(Kernel kernel);  // also kernels without a type of their own
const void* bf16_kernel(Kernel kernel);
const void* fp16_kernel(Kernel kernel);

inline const void* kernel_function(Kernel kernel, Type type) {
  switch (type) {
    case Type::fp32:
      return fp32_kernel(kernel);
    case Type::bf16:
      return bf16_kernel(kernel);
    case Type::fp16:
      return fp16_kernel(kernel);
  }
  return nullptr;
}

}  // namespace ringtrain::cuda
