// Computes two sums per column of an epilogue's tile: the sum of a value, and the sum of its product with another
// value. The sums are in fp32 and in an order that depends on sizes alone. This is the work of a tile's four warps;
// column_sums.cuh makes it a node of CUTLASS's trees.
//
// An epilogue processes its tile in steps of 64 rows x 32 columns, rows first. In each step a warp holds 16 rows.
// Thread t of the warp holds 16 elements: those in the rows t / 4 and t / 4 + 8, and in the columns 8 j + 2 (t % 4) and
// 8 j + 2 (t % 4) + 1 for j = 0 to 3. Relative to row t / 4 and column 2 (t % 4), its element i is at row
// 8 (i / 2 % 2) and column 8 (i / 4) + i % 2.
//
// A thread first adds up its rows of all steps. Then the eight threads that hold the same columns add up their sums
// with shuffles. In each shuffle a thread keeps half of its values. Finally the sums of the four warps are added in
// shared memory.
#pragma once

#include "backend/cuda/kernels/element.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

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

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
