// Adds up the partial results of tiles and splits. The order of each sum depends on sizes alone.
#pragma once

#include "backend/cuda/kernels/element.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Adds the partial sums [groups x tiles_per_group][columns] up to the sums of a group, which begin at group x stride.
struct ReduceTilesArguments {
  const float *sum, *other;
  float *to_sum, *to_other;
  std::int64_t stride, columns;
  int tiles_per_group, channels;
};
constexpr int reduce_channels = 32, reduce_parts = 32;

// A block has 32 channels of a group and 32 threads for each channel. Each thread adds every 32nd tile, in double
// precision.
template <class>
__global__ void __launch_bounds__(reduce_channels* reduce_parts) reduce_tiles(ReduceTilesArguments a) {
  RINGTRAIN_SHARED(double, parts, [2][reduce_parts][reduce_channels]);
  const auto lane = static_cast<int>(threadIdx.x) % reduce_channels,
             part = static_cast<int>(threadIdx.x) / reduce_channels;
  const int channel = static_cast<int>(blockIdx.x) * reduce_channels + lane, group = static_cast<int>(blockIdx.y);
  double sum = 0, other = 0;
  if (channel < a.channels) {
    const std::int64_t first = static_cast<std::int64_t>(group) * a.tiles_per_group;
    RINGTRAIN_UNROLL_FOUR
    for (int tile = part; tile < a.tiles_per_group; tile += reduce_parts) {
      const std::int64_t at = (first + tile) * a.columns + channel;
      sum += static_cast<double>(a.sum[at]);
      other += static_cast<double>(a.other[at]);
    }
  }
  parts[0][part][lane] = sum;
  parts[1][part][lane] = other;
  __syncthreads();
  if (part > 1 || channel >= a.channels) return;
  double total = 0;
  for (int i = 0; i < reduce_parts; ++i) total += parts[part][i][lane];
  (part == 0 ? a.to_sum : a.to_other)[group * a.stride + channel] = static_cast<float>(total);
}

// Computes to = alpha x the sum over the splits of parts[splits][count]. count is a multiple of 8.
struct ReduceSplitsArguments {
  const float* parts;
  void* to;
  std::int64_t count;
  int splits;
  float alpha;
};
constexpr int reduce_threads = 256;

template <class T>
__global__ void __launch_bounds__(reduce_threads) reduce_splits(ReduceSplitsArguments a) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * reduce_threads + threadIdx.x) * 8;
  if (at >= a.count) return;
  Eight sums{};
  RINGTRAIN_UNROLL_FOUR
  for (int split = 0; split < a.splits; ++split) {
    const Eight part = load_floats<true>(a.parts, split * a.count + at, 8);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) sums.v[i] += part.v[i];
  }
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) sums.v[i] *= a.alpha;
  store<T, true>(a.to, at, 8, sums);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
