// The optimizer's work on flat vectors.
#pragma once

#include "backend/cuda/kernels.h"
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

// Four neighbours: vectors of fp32 are read 16 bytes at a time.
struct alignas(16) Four {
  float v[4];
};
template <bool whole>
__device__ __forceinline__ Four load_four(const float* from, int count) {
  if constexpr (whole) {
    return *reinterpret_cast<const Four*>(from);
  } else {
    Four four{};
    RINGTRAIN_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < count) four.v[i] = from[i];
    return four;
  }
}
template <bool whole>
__device__ __forceinline__ void store_four(float* to, int count, const Four& four) {
  if constexpr (whole) {
    *reinterpret_cast<Four*>(to) = four;
  } else {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < count) to[i] = four.v[i];
  }
}

// `count` elements from `at` on, all of one range.
template <bool whole>
__device__ __forceinline__ void update_four(const UpdateArguments& a, const UpdateRule& rule, std::int64_t at,
                                            int count) {
  Four w = load_four<whole>(a.weights + at, count), first = load_four<whole>(a.state[0] + at, count);
  const Four g = load_four<whole>(a.gradients + at, count);
  if (rule.kind == OptimizerKind::sgd) {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 4; ++i) w.v[i] = sgd_update(rule, w.v[i], g.v[i], first.v[i]);
  } else {
    Four second = load_four<whole>(a.state[1] + at, count);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 4; ++i) w.v[i] = adam_update(rule, w.v[i], g.v[i], first.v[i], second.v[i]);
    store_four<whole>(a.state[1] + at, count, second);
  }
  store_four<whole>(a.weights + at, count, w);
  store_four<whole>(a.state[0] + at, count, first);
}

template <class>
__global__ void __launch_bounds__(tile_threads) update(UpdateArguments a) {
  if (a.scalars->applied == 0) return;
  UpdateRule rule = *a.rule;
  rule.gradient_scale = a.scalars->gradient_scale;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * update_chunk;
  const std::int64_t end = begin + update_chunk < a.count ? begin + update_chunk : a.count;
  int low = 0, high = a.range_count;  // the first range that ends behind the chunk's begin
  while (low < high) {
    const int middle = (low + high) / 2;
    if (a.ranges[middle].end <= begin)
      low = middle + 1;
    else
      high = middle;
  }
  const bool whole = aligned(a.weights, a.gradients, a.state[0], a.state[1]);
  for (std::int64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * tile_threads) {
    std::int64_t from = at;
    const std::int64_t to = at + 4 < end ? at + 4 : end;
    while (low < a.range_count && a.ranges[low].end <= from) ++low;
    for (int range = low; range < a.range_count && a.ranges[range].begin < to; ++range) {
      if (from < a.ranges[range].begin) from = a.ranges[range].begin;
      const std::int64_t stop = to < a.ranges[range].end ? to : a.ranges[range].end;
      rule.weight_decay = a.ranges[range].weight_decay;
      if (whole && stop - from == 4)
        update_four<true>(a, rule, from, 4);
      else
        update_four<false>(a, rule, from, static_cast<int>(stop - from));
      from = stop;
    }
  }
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
