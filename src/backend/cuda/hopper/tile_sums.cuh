// Per column of a tile of an epilogue: the sum of one value and that of its product with another, in fp32 and in an
// order that depends on sizes alone. What a tile's four warps do; column_sums.cuh puts it into CUTLASS's trees.
//
// An epilogue goes over its tile in steps of 64 rows x 32 columns, rows first. In each, a warp holds 16 rows: thread t
// the rows t / 4 and t / 4 + 8, the columns 8 j + 2 (t % 4) and the next, j = 0 to 3; its element i is at row 8 (i / 2
// % 2), column 8 (i / 4) + i % 2 from there. A thread adds up its rows of all steps, eight threads add up theirs by
// shuffles in which each keeps half of what it has, and the four warps meet in shared memory.
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
  // After the last rows of a column of steps.
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
  // After a barrier behind the last step. `which`: 0 the sum, 1 that of the products.
  static __device__ float total(const Shared& shared, int which, int column) {
    const auto& of = shared.sums[which];
    return (of[0][column] + of[1][column]) + (of[2][column] + of[3][column]);
  }

 private:
  // Of 2 x `half` values a thread keeps the half that a bit of its number names, and adds what the other thread has of
  // it.
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

// The gradient behind a ReLU whose output this is.
__device__ __forceinline__ float gated(float gradient, float output) {
  return output > 0 ? gradient : 0;
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
