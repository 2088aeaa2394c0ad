// The sums of the convolutions for Hopper: those of a tile's columns in an epilogue, and those over the partial results
// of tiles and splits. The order of each sum depends on sizes alone.
#pragma once

#include "backend/cuda/kernels/element.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Computes two sums per column of an epilogue's tile: the sum of a value, and the sum of its product with another
// value. The sums are in fp32. This is the work of a tile's four warps; convolution.cuh makes it a node of CUTLASS's
// trees.
//
// An epilogue processes its tile in steps of 64 rows x 32 columns, rows first. In each step a warp holds 16 rows.
// Thread t of the warp holds 16 elements: those in the rows t / 4 and t / 4 + 8, and in the columns 8 j + 2 (t % 4) and
// 8 j + 2 (t % 4) + 1 for j = 0 to 3. Relative to row t / 4 and column 2 (t % 4), its element i is at row
// 8 (i / 2 % 2) and column 8 (i / 4) + i % 2.
//
// A thread first adds up its rows of all steps. Then the eight threads that hold the same columns add up their sums
// with shuffles. In each shuffle a thread keeps half of its values. Finally the sums of the four warps are added in
// shared memory.
template <int rows, int columns>
struct TileSums {
  static constexpr int warps = 4, step_rows = 64, step_columns = 32, held = 16;
  struct Shared {
    alignas(16) float sums[2][warps][columns];
  };
  float values[held];  // [sum, other][j][the next column]

  static constexpr __device__ int row_of(int i) { return i / 2 % 2 * 8; }
  static constexpr __device__ int column_of(int i) { return i / 4 * 8 + i % 2; }

  __device__ void begin(int step_m) {
    if (step_m != 0) return;
    RINGTRAIN_UNROLL
    for (int i = 0; i < held; ++i) values[i] = 0;
  }
  __device__ void add(int i, float value, float other) {
    const int at = i / 4 * 2 + i % 2;
    values[at] += value;
    values[8 + at] += value * other;
  }
  // Call this after each step. It does its work after the last rows of a column of steps.
  __device__ void end(int thread, int step_m, int step_n, Shared& shared) {
    if (step_m != rows / step_rows - 1) return;
    exchange<8>(thread, 16);
    exchange<4>(thread, 8);
    exchange<2>(thread, 4);
    const int lane = thread % 32, column = step_n * step_columns + lane / 4 % 4 * 8 + lane % 4 * 2;
    float* const to = &shared.sums[lane / 16][thread / 32][column];
    to[0] = values[0];
    to[1] = values[1];
  }
  // Call this after a barrier that follows the last step. `which` is 0 for the sum and 1 for the sum of the products.
  static __device__ float total(const Shared& shared, int which, int column) {
    const auto& of = shared.sums[which];
    return (of[0][column] + of[1][column]) + (of[2][column] + of[3][column]);
  }

 private:
  // A thread has 2 x `half` values. `bit` of its number decides which half it keeps. It adds the other thread's values
  // of that half.
  template <int half>
  __device__ void exchange(int thread, int bit) {
    const bool upper = (thread & bit) != 0;
    RINGTRAIN_UNROLL
    for (int i = 0; i < half; ++i) {
      const float keep = upper ? values[half + i] : values[i], send = upper ? values[i] : values[half + i];
      values[i] = keep + __shfl_xor_sync(0xffffffffu, send, bit);
    }
  }
};

// Returns the group that a tile of rows belongs to. A cluster may have tiles beyond the last one. They count as tiles
// of the last group, so that they point to no memory outside of the groups' values.
__device__ __forceinline__ int group_of_tile(int tile, int tiles_per_group, int groups) {
  const int group = tile / tiles_per_group;
  return group < groups ? group : groups - 1;
}

// Returns the gradient after the derivative of a ReLU with this output.
__device__ __forceinline__ float gated(float gradient, float output) {
  return output > 0 ? gradient : 0;
}

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
