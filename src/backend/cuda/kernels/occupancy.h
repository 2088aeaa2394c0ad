// How many blocks of an own kernel a GPU holds at a time, and grids that keep all of it busy to their end. What a
// kernel takes is results/cuda_kernel_resources.csv, which is compiled in.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// Blocks of `threads` threads with `registers` each and `shared_bytes` of static shared memory that a multiprocessor of
// this compute capability (90 for 9.0) holds: the least of what its threads, blocks, registers (given out to warps by
// 256, in each of four partitions) and shared memory (1 KiB more for each block) allow. CUDA C++ Programming Guide,
// "Compute Capabilities"; cuda_occupancy.h.
int blocks_per_multiprocessor(int compute_capability, int threads, int registers, int shared_bytes);

// Blocks of this kernel on the whole GPU at a time.
std::int64_t resident_blocks(const GpuSize& gpu, Kernel kernel, Type type, unsigned threads);

// Blocks in x, at most `most`, for a kernel with `others` blocks in y and z together, whose blocks in x share out the
// work. About `wanted`, but a whole number of waves of `resident` blocks (or most of one): the last wave does not leave
// the GPU half empty. One wave at least where there is work for it.
std::int64_t whole_waves(std::int64_t resident, std::int64_t wanted, std::int64_t others, std::int64_t most);

// The grid that a launch gets on this GPU: other blocks in x where they walk over the rows, else as it is.
LaunchShape fitted(const KernelLaunch& launch, const GpuSize& gpu);

}  // namespace ringtrain::cuda
