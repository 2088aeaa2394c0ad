// Computes checksums of ranges of a flat vector (nn/math.h). Sums of integers have the same bits in any order.
#pragma once

#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/tensors.cuh"
#include "nn/math.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// A block processes one chunk of one range (norm_chunk elements).
template <class>
__global__ void __launch_bounds__(tile_threads) checksum_parts(ChecksumPartsArguments a) {
  RINGTRAIN_SHARED(std::uint64_t, shared, [tile_threads / 32]);
  const NormRange range = place_of_block(a.ranges, a.count);
  const std::int64_t begin = range.begin + (static_cast<std::int64_t>(blockIdx.x) - range.first_block) * norm_chunk;
  const std::int64_t range_end = range.begin + range.count;
  const std::int64_t end = begin + norm_chunk < range_end ? begin + norm_chunk : range_end;
  std::uint64_t sum = 0;
  for (std::int64_t at = begin + threadIdx.x; at < end; at += tile_threads)
    sum += checksum_term(a.words[at], static_cast<std::uint64_t>(at));
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
