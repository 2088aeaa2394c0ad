// The compiled kernels: the addresses of their code, how many blocks of each a GPU holds at a time, and grids whose
// last wave fills the GPU. The registers and the shared memory of the kernels come from
// device/recorded/kernel_resources.csv, which is compiled in.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// These return the address that cudaLaunchKernel takes, or null when there is no such kernel. table.cu defines them in
// libringtrain-cuda.so.
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

// Returns the number of blocks that a multiprocessor of this compute capability (90 for 9.0) holds. A block has
// `threads` threads with `registers` registers each, and `shared_bytes` of static shared memory. The result is the
// smallest of four limits: threads, blocks, registers and shared memory. Registers are allocated to warps in units of
// 256, in each of four partitions. Shared memory has 1 KiB more for each block. Sources: CUDA C++ Programming Guide,
// "Compute Capabilities"; cuda_occupancy.h.
int blocks_per_multiprocessor(int compute_capability, int threads, int registers, int shared_bytes);

// Returns the number of blocks of this kernel that the whole GPU holds at a time.
std::int64_t resident_blocks(const GpuSize& gpu, Kernel kernel, Type type, unsigned threads);

// Returns the number of blocks in x for a kernel whose blocks in x divide the work among themselves. The kernel has
// `others` blocks in y and z together. The result is at most `most` and about `wanted`. The whole grid is close to a
// whole number of waves of `resident` blocks, so that the last wave does not leave the GPU half empty. The result is at
// least one wave when there is enough work.
std::int64_t whole_waves(std::int64_t resident, std::int64_t wanted, std::int64_t others, std::int64_t most);

// Returns the grid of a launch on this GPU. The number of blocks in x changes only when the blocks loop over the rows
// (LaunchShape::most_x).
LaunchShape fitted(const KernelLaunch& launch, const GpuSize& gpu);

}  // namespace ringtrain::cuda
