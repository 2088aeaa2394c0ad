// This kernel computes softmax cross-entropy and its gradient. A warp computes a row.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"
#include "nn/math.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Holds the result for a row. Every lane of the warp has the same values.
struct RowScore {
  double loss;
  bool correct, correct5;
};

template <class T>
__device__ __forceinline__ RowScore score_row(const CrossEntropyArguments& a, std::int64_t row, int target) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const float* logits = a.logits + row * a.stride;
  const float at_target = logits[target];
  float top = -__builtin_inff(), total = 0;
  // Counts the classes that rank before the target. Among equal logits the first ranks first. When the target's logit
  // is NaN, every class ranks before it.
  int above = 0;
  for (int j = lane; j < a.classes; j += 32) {
    top = maximum(top, logits[j]);
    total += logits[j];
    above += j < target ? !(logits[j] < at_target) : !(logits[j] <= at_target);
  }
  top = warp_maximum(top);
  total = warp_sum(total);
  above = warp_sum(above);
  float part = 0;
  for (int j = lane; j < a.classes; j += 32) part += fast_exp(logits[j] - top);
  const float sum = warp_sum(part);
  const auto smoothing = static_cast<double>(a.label_smoothing);
  const double loss = log(static_cast<double>(sum)) + static_cast<double>(top) -
                      (1 - smoothing) * static_cast<double>(at_target) -
                      smoothing / a.classes * static_cast<double>(total);
  if (a.gradient != nullptr) {
    // A loss that is not finite turns the gradient into NaN. A NaN in the gradient skips the update on all ranks,
    // before the host has seen the loss.
    const float scale = a.state->gradient_scale + static_cast<float>(loss - loss), factor = scale / sum;
    const float even = scale * (a.label_smoothing / static_cast<float>(a.classes));
    const float own = scale * (1.0f - a.label_smoothing);
    T* gradient = static_cast<T*>(a.gradient) + row * a.stride;
    for (int j = lane; j < a.stride; j += 32) {
      float d = 0;
      if (j < a.classes) d = fast_exp(logits[j] - top) * factor - even - (j == target ? own : 0.0f);
      narrow(d, gradient[j]);
    }
  }
  return {loss, above == 0, above < 5};
}

// BlockSums is PassSums without initial values, because shared memory allows none.
struct BlockSums {
  double loss;
  std::int64_t correct, correct5, targets;
};
template <class Sums>
__device__ __forceinline__ BlockSums plus(const BlockSums& a, const Sums& b) {
  return {a.loss + b.loss, a.correct + b.correct, a.correct5 + b.correct5, a.targets + b.targets};
}
__device__ __forceinline__ void put(const BlockSums& from, PassSums& to) {
  to.loss = from.loss;
  to.correct = from.correct;
  to.correct5 = from.correct5;
  to.targets = from.targets;
}

// Adds up the sums of all threads; thread 0 has the result.
__device__ __forceinline__ BlockSums block_sums(const BlockSums& mine, BlockSums* shared) {
  BlockSums sums{warp_sum(mine.loss), warp_sum(mine.correct), warp_sum(mine.correct5), warp_sum(mine.targets)};
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sums;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int warp = 1; warp < tile_threads / 32; ++warp) sums = plus(sums, shared[warp]);
  return sums;
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 4) cross_entropy(CrossEntropyArguments a) {
  RINGTRAIN_SHARED(BlockSums, shared, [tile_threads / 32]);
  RINGTRAIN_SHARED(bool, last, );
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t rows = a.samples * a.length, warps = tile_threads / 32;
  BlockSums sums{0, 0, 0, 0};  // sums of this warp's rows, in its first lane
  for (std::int64_t row = blockIdx.x * warps + threadIdx.x / 32; row < rows; row += gridDim.x * warps) {
    const std::int64_t time = quotient(row, a.samples), sample = row - time * a.samples;
    const std::int32_t target = a.targets[sample * a.length + time];
    if (target < 0) {
      if (a.gradient == nullptr) continue;
      T* gradient = static_cast<T*>(a.gradient) + row * a.stride;
      for (int j = lane; j < a.stride; j += 32) narrow(0.0f, gradient[j]);
      continue;
    }
    const RowScore score = score_row<T>(a, row, target);
    if (lane == 0) sums = plus(sums, BlockSums{score.loss, score.correct, a.top5 && score.correct5, 1});
  }
  sums = block_sums(sums, shared);
  if (threadIdx.x == 0) {
    put(sums, a.partial[blockIdx.x]);
    __threadfence();
    last = atomicAdd(a.finished, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  BlockSums total{0, 0, 0, 0};
  for (unsigned block = threadIdx.x; block < gridDim.x; block += tile_threads) {
    const volatile PassSums& part = a.partial[block];
    total = plus(total, part);
  }
  total = block_sums(total, shared);
  if (threadIdx.x != 0) return;
  put(plus(total, *a.sums), *a.sums);
  *a.finished = 0;
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
