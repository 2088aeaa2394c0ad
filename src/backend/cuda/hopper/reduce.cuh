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
constexpr int reduce_channels = 8, reduce_parts = 128;  // eight channels are 32 bytes, the least that memory delivers

// A block has eight channels of a group and 128 threads for each channel. Each thread adds every 128th tile, in double
// precision. So a layer of 64 channels with thousands of tiles has eight blocks, and each thread has few tiles.
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
  for (int half = reduce_parts / 2; half > 0; half /= 2) {
    __syncthreads();
    if (part >= half) continue;
    parts[0][part][lane] += parts[0][part + half][lane];
    parts[1][part][lane] += parts[1][part + half][lane];
  }
  if (part != 0 || channel >= a.channels) return;
  a.to_sum[group * a.stride + channel] = static_cast<float>(parts[0][0][lane]);
  a.to_other[group * a.stride + channel] = static_cast<float>(parts[1][0][lane]);
}

// Computes to = alpha x the sum over the splits of parts[splits][count]. count is a multiple of 8.
struct ReduceSplitsArguments {
  const float* parts;
  void* to;
  std::int64_t count;
  int splits;
  int sharers;  // threads that share eight elements; a power of two, see sharers_of()
  float alpha;
};
constexpr int reduce_threads = 256;

// Returns the number of threads that share the splits of eight elements. A small result has many splits, and one thread
// would add them all up one after the other. Every thread gets at least four splits.
inline int sharers_of(std::int64_t splits) {
  int sharers = 1;
  while (sharers < 16 && splits >= 8 * sharers) sharers *= 2;
  return sharers;
}

template <class T>
__global__ void __launch_bounds__(reduce_threads) reduce_splits(ReduceSplitsArguments a) {
  RINGTRAIN_SHARED(float, shared, [8][reduce_threads]);
  const int octets = reduce_threads / a.sharers, thread = static_cast<int>(threadIdx.x);
  const int lane = thread % octets, sharer = thread / octets;
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * octets + lane) * 8;
  Eight sums{};
  if (at < a.count) {
    RINGTRAIN_UNROLL_FOUR
    for (int split = sharer; split < a.splits; split += a.sharers) {
      const Eight part = load_floats<true>(a.parts, split * a.count + at, 8);
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) sums.v[i] += part.v[i];
    }
  }
  if (a.sharers > 1) {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) shared[i][thread] = sums.v[i];
    __syncthreads();
  }
  if (sharer != 0 || at >= a.count) return;
  for (int other = 1; other < a.sharers; ++other) {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) sums.v[i] += shared[i][other * octets + lane];
  }
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) sums.v[i] *= a.alpha;
  store<T, true>(a.to, at, 8, sums);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
