// These functions sum over warps and blocks. The order depends on sizes alone, so every run has the same bits.
#pragma once

#include "backend/cuda/kernels/element.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

constexpr unsigned all_lanes = 0xffffffffu;

// Adds the values of a warp; every lane gets the sum.
template <class V>
__device__ __forceinline__ V warp_sum(V value) {
  RINGTRAIN_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(all_lanes, value, distance);
  return value;
}
__device__ __forceinline__ float warp_maximum(float value) {
  RINGTRAIN_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(all_lanes, value, distance);
    value = value > other ? value : other;
  }
  return value;
}

// Adds the values of all threads of a block; thread 0 gets the sum. `shared` has one element per warp and is free again
// after the next barrier.
template <class V>
__device__ __forceinline__ V block_sum(V value, V* shared) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value += shared[warp];
  return value;
}

__device__ __forceinline__ void set_or_add(float* to, double value, bool accumulate) {
  *to = (accumulate ? *to : 0.0f) + static_cast<float>(value);
}

// Adds `count` sums per channel over the threads of a tile (see tiles.h) that hold the same eight channels. The result
// is to[count][channels]. `shared` has count x 8 x tile_threads elements.
template <int count>
__device__ __forceinline__ void column_totals(const float (&sums)[count * 8], int channels, unsigned column_tile,
                                              float* to, float* shared) {
  const int columns = tile_columns(octets_of(channels)), rows = tile_threads / columns;
  const int thread = static_cast<int>(threadIdx.x);
  RINGTRAIN_UNROLL
  for (int k = 0; k < count * 8; ++k) shared[k * tile_threads + thread] = sums[k];
  __syncthreads();
  for (int i = thread; i < count * 8 * columns; i += tile_threads) {
    const int k = i / columns, column = i % columns;
    const int channel = (static_cast<int>(column_tile) * columns + column) * 8 + k % 8;
    if (channel >= channels) continue;
    const float* from = shared + k * tile_threads + column;
    float total = 0;
    for (int row = 0; row < rows; ++row) total += from[row * columns];
    to[static_cast<std::int64_t>(k / 8) * channels + channel] = total;
  }
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
