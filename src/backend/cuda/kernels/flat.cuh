// Updates running statistics and casts flat vectors.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

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
