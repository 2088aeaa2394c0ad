// These kernels work on ranges of flat vectors: squared norms, with the scalars of an update that follow from the norm
// of the gradient, checksums, running statistics and casts.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/tensors.cuh"
#include "nn/math.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Squared norms of ranges of a flat vector. One launch processes all ranges. The order of every sum depends on the
// ranges alone, and no sum needs atomics.

__device__ __forceinline__ bool finite(double x) {
  return x - x == 0;
}

// Sets `before` to `values`, and `values` to their difference from the old `before`. With `first`, `values` stay.
template <bool whole>
__device__ __forceinline__ void take_change(Eight& values, float* before, std::int64_t at, int count, bool first) {
  const Eight now = values;
  if (!first) {
    const Eight then = load_floats<whole>(before, at, count);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) values.v[i] = now.v[i] - then.v[i];
  }
  store<float, whole>(before, at, count, now);
}

// A block processes one chunk of one range (norm_chunk elements).
template <class>
__global__ void __launch_bounds__(tile_threads) squared_norm_parts(SquaredNormPartsArguments a) {
  RINGTRAIN_SHARED(double, shared, [tile_threads / 32]);
  const NormRange range = place_of_block(a.ranges, a.count);
  const float* values = a.values + range.begin;
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - range.first_block) * norm_chunk;
  const std::int64_t end = begin + norm_chunk < range.count ? begin + norm_chunk : range.count;
  float* before = a.before == nullptr ? nullptr : a.before + range.begin;
  const bool is_aligned = aligned(values, before);
  double sum = 0;
  for (std::int64_t at = begin + 8 * static_cast<std::int64_t>(threadIdx.x); at < end; at += 8 * tile_threads) {
    const int count = end - at < 8 ? static_cast<int>(end - at) : 8;
    const bool whole = is_aligned && count == 8;
    Eight v = whole ? load_floats<true>(values, at, 8) : load_floats<false>(values, at, count);
    if (before != nullptr) {
      if (whole)
        take_change<true>(v, before, at, 8, a.first);
      else
        take_change<false>(v, before, at, count, a.first);
    }
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) sum += static_cast<double>(v.v[i]) * static_cast<double>(v.v[i]);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

// A block processes one range.
template <class>
__global__ void __launch_bounds__(tile_threads) squared_norms(SquaredNormsArguments a) {
  RINGTRAIN_SHARED(double, shared, [tile_threads / 32]);
  const int range = static_cast<int>(blockIdx.x);
  const std::int64_t end = range + 1 < a.count ? a.ranges[range + 1].first_block : a.blocks;
  double sum = 0;
  for (std::int64_t at = a.ranges[range].first_block + threadIdx.x; at < end; at += tile_threads) sum += a.partial[at];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.norms[range] = a.add ? a.norms[range] + sum : sum;
}

// Returns the sum of the norms on thread 0 of the only block.
__device__ __forceinline__ double sum_of_norms(const double* norms, int count, double* shared) {
  double sum = 0;
  for (int range = static_cast<int>(threadIdx.x); range < count; range += tile_threads) sum += norms[range];
  return block_sum(sum, shared);
}

// The kernel runs in one block, like update_scalars.
template <class>
__global__ void __launch_bounds__(tile_threads) norm_total(NormTotalArguments a) {
  RINGTRAIN_SHARED(double, shared, [tile_threads / 32]);
  const double sum = sum_of_norms(a.norms, a.count, shared);
  if (threadIdx.x != 0) return;
  const double total = a.first ? sum : *a.total + sum;
  *a.total = total;
  if (a.to != nullptr) *a.to = static_cast<float>(total);
}

// The kernel runs in one block. The norm of all ranges together decides about overflow and clipping. AdaScale's gain
// follows from this norm.
template <class>
__global__ void __launch_bounds__(tile_threads) update_scalars(UpdateScalarsArguments a) {
  RINGTRAIN_SHARED(double, shared, [tile_threads / 32]);
  const double sum = sum_of_norms(a.norms, a.count, shared);
  if (threadIdx.x != 0) return;
  const auto unscale = static_cast<double>(a.unscale);
  const double squared = sum * unscale * unscale, norm = sqrt(squared);
  a.scalars->squared_norm = squared;
  a.scalars->applied = finite(squared) ? 1 : 0;
  a.scalars->gradient_scale =
      static_cast<float>(a.clip_norm > 0 && norm > a.clip_norm ? unscale * (a.clip_norm / norm) : unscale);
  a.scalars->gain = a.scalars->rate_factor = 1;
  if (a.small_norms == nullptr || !finite(squared)) return;
  a.scalars->adascale = with_step(a.adascale, squared, static_cast<double>(*a.small_norms) * unscale * unscale);
  a.scalars->gain = adascale_gain(a.scalars->adascale, a.adascale.times);
  a.scalars->rate_factor = static_cast<float>(a.scalars->gain);
}

// A block processes one chunk of one range (norm_chunk elements), and computes its part of the checksum (nn/math.h).
// Sums of integers have the same bits in any order.
template <class>
__global__ void __launch_bounds__(tile_threads) checksum_parts(ChecksumPartsArguments a) {
  RINGTRAIN_SHARED(std::uint64_t, shared, [tile_threads / 32]);
  const NormRange range = place_of_block(a.ranges, a.count);
  const std::int64_t begin = range.begin + (static_cast<std::int64_t>(blockIdx.x) - range.first_block) * norm_chunk;
  const std::int64_t range_end = range.begin + range.count;
  const std::int64_t end = begin + norm_chunk < range_end ? begin + norm_chunk : range_end;
  std::uint64_t sum = 0;
  for (std::int64_t at = begin + threadIdx.x; at < end; at += tile_threads)
    sum += checksum_term(a.words[at], static_cast<std::uint64_t>(at));
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

// Updates running statistics.
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
