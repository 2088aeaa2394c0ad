// Sums and averages of flat vectors, and their casts; the update itself is in update.cuh.
#pragma once

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/reduce.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

__device__ __forceinline__ bool finite(double x) {
  return x - x == 0;
}

template <class>
__global__ void __launch_bounds__(tile_threads) squared_norm(SquaredNormArguments a) {
  __shared__ double shared[tile_threads / 32];
  const std::int64_t step = 8 * static_cast<std::int64_t>(gridDim.x) * tile_threads;
  const bool whole = aligned(a.values);
  double sum = 0;
  for (std::int64_t at = 8 * (static_cast<std::int64_t>(blockIdx.x) * tile_threads + threadIdx.x); at < a.count;
       at += step) {
    const Eight v = whole && a.count - at >= 8
                        ? load_floats<true>(a.values, at, 8)
                        : load_floats<false>(a.values, at, a.count - at < 8 ? static_cast<int>(a.count - at) : 8);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) sum += static_cast<double>(v.v[i]) * static_cast<double>(v.v[i]);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

template <class>
__global__ void __launch_bounds__(tile_threads) squared_norm_total(SquaredNormTotalArguments a) {
  __shared__ double shared[tile_threads / 32];
  double sum = 0;
  for (int block = static_cast<int>(threadIdx.x); block < a.blocks; block += tile_threads) sum += a.partial[block];
  sum = block_sum(sum, shared);
  if (threadIdx.x != 0) return;
  const auto unscale = static_cast<double>(a.unscale);
  const double squared = sum * unscale * unscale, norm = sqrt(squared);
  a.scalars->squared_norm = squared;
  a.scalars->applied = finite(squared) ? 1 : 0;
  a.scalars->gradient_scale =
      static_cast<float>(a.clip_norm > 0 && norm > a.clip_norm ? unscale * (a.clip_norm / norm) : unscale);
}

template <class>
__global__ void __launch_bounds__(tile_threads) average(AverageArguments a) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * tile_threads + threadIdx.x;
  if (at >= a.count || a.scalars->applied == 0) return;
  a.weights[at] = (1 - a.momentum) * a.weights[at] + a.momentum * a.means[at];
}

template <class From, class To>
__device__ __forceinline__ void cast_octet(const CastArguments& a, std::int64_t at) {
  const int count = a.count - at < 8 ? static_cast<int>(a.count - at) : 8;
  const bool whole = count == 8 && aligned(a.from, a.to);
  Eight v = whole ? widen(load<From, true>(a.from, at, 8)) : widen(load<From, false>(a.from, at, count));
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) v.v[i] *= a.scale;
  if (whole)
    store<To, true>(a.to, at, 8, v);
  else
    store<To, false>(a.to, at, count, v);
}
template <class From>
__device__ __forceinline__ void cast_from(const CastArguments& a, std::int64_t at) {
  if (a.to_type == Type::fp32)
    cast_octet<From, float>(a, at);
  else if (a.to_type == Type::bf16)
    cast_octet<From, Bf16>(a, at);
  else
    cast_octet<From, Fp16>(a, at);
}

template <class>
__global__ void __launch_bounds__(tile_threads) cast(CastArguments a) {
  const std::int64_t at = 8 * (static_cast<std::int64_t>(blockIdx.x) * tile_threads + threadIdx.x);
  if (at >= a.count) return;
  if (a.from_type == Type::fp32)
    cast_from<float>(a, at);
  else if (a.from_type == Type::bf16)
    cast_from<Bf16>(a, at);
  else
    cast_from<Fp16>(a, at);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
