// The runtime device finds the addresses of compiled kernels here.
#pragma once

#include "backend/cuda/kernels/kernels.h"

// Lists every kernel once as X(name, typed), in the order of the enumeration. `typed` is 0 for a kernel without a type
// of its own, which is launched as fp32. The table of addresses, the names and the emulation are made from this list.

#define RINGTRAIN_KERNEL_LIST(X) \
  X(image_input, 1)              \
  X(one_hot, 1)                  \
  X(norm_sums, 1)                \
  X(norm_join_channels, 0)       \
  X(norm_finalize, 1)            \
  X(norm_inference, 0)           \
  X(norm_apply, 1)               \
  X(norm_backward_sums, 1)       \
  X(norm_backward_finalize, 0)   \
  X(norm_backward_apply, 1)      \
  X(norm_pool, 1)                \
  X(norm_pool_backward_sums, 1)  \
  X(norm_pool_backward_apply, 1) \
  X(activate, 1)                 \
  X(activate_backward, 1)        \
  X(column_sum_parts, 1)         \
  X(column_sums, 0)              \
  X(add, 1)                      \
  X(max_pool, 1)                 \
  X(max_pool_backward, 1)        \
  X(average_pool, 1)             \
  X(average_pool_backward, 1)    \
  X(reorder, 1)                  \
  X(dropout, 1)                  \
  X(cross_entropy, 1)            \
  X(copy_tensors_in, 1)          \
  X(copy_tensors_home, 1)        \
  X(state_in, 1)                 \
  X(state_out, 1)                \
  X(cast, 0)                     \
  X(squared_norm_parts, 0)       \
  X(squared_norms, 0)            \
  X(checksum_parts, 0)           \
  X(norm_total, 0)               \
  X(update_scalars, 0)           \
  X(lamb_moments, 0)             \
  X(trust_ratios, 0)             \
  X(muon_directions, 0)          \
  X(normalize_ranges, 0)         \
  X(blend, 0)                    \
  X(update, 1)                   \
  X(average, 0)

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
