// These kernels work on flat vectors. They copy tensors between a flat vector, which has PyTorch's order, and the
// layouts and types of a program's own copies. On ranges of flat vectors they compute squared norms, with the scalars
// of an update that follow from the norm of the gradient, checksums, running statistics and casts.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"
#include "nn/math.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

template <class Place>
__device__ __forceinline__ std::int64_t first_block_of(const Place& place) {
  return place.first_block;
}
__device__ __forceinline__ std::int64_t first_block_of(const UpdatePlace& place) {
  return place.tensor.first_block;
}
// Returns the index of the place that this block belongs to: the last place whose first block is at most blockIdx.x.
template <class Place>
__device__ __forceinline__ int index_of_block(const Place* places, int count) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_block_of(places[middle]) <= static_cast<std::int64_t>(blockIdx.x))
      low = middle;
    else
      high = middle;
  }
  return low;
}
template <class Place>
__device__ __forceinline__ Place place_of_block(const Place* places, int count) {
  return places[index_of_block(places, count)];
}

// Describes the piece of a tensor that a block copies when taps and inner elements swap. The piece is one outer index,
// a range of inner elements and all taps. The offsets count from the tensor's first element on each side.
struct TapsPiece {
  std::int64_t flat, own;
  int flat_count, own_count;  // inner elements; those after flat_count are padding
  int own_taps;
};
__device__ __forceinline__ TapsPiece taps_piece(const TensorPlace& p, std::int64_t block) {
  if (p.windows) return {block * p.inner * p.taps, block * p.padded, p.inner, p.padded, 1};
  const int width = copy_width(p.taps), across = p.padded / width + (p.padded % width != 0);
  const std::int64_t outer = quotient(block, across);
  const int inner = static_cast<int>(block - outer * across) * width;
  TapsPiece piece;
  piece.own_count = p.padded - inner < width ? p.padded - inner : width;
  piece.flat_count = p.inner - inner < piece.own_count ? (p.inner - inner > 0 ? p.inner - inner : 0) : piece.own_count;
  piece.own = outer * p.taps * p.padded + inner;
  piece.flat = (outer * p.inner + inner) * p.taps;
  piece.own_taps = p.taps;
  return piece;
}
// Holds the place of an element in a piece of the copy, and in shared memory, which is [flat_count][taps]. Padding has
// the place -1 there.
struct PieceElement {
  std::int64_t own;
  int shared;
};
// `k` counts the elements of the piece in the copy: [own_taps][own_count].
__device__ __forceinline__ PieceElement piece_element(const TensorPlace& p, const TapsPiece& piece, int k) {
  const int tap = k / piece.own_count, i = k % piece.own_count;
  const std::int64_t own = static_cast<std::int64_t>(tap) * p.padded + i;
  if (p.windows) return {own, i < p.taps * p.inner ? i % p.inner * p.taps + i / p.inner : -1};
  return {own, i < piece.flat_count ? i * p.taps + tap : -1};
}
template <class T>
__device__ __forceinline__ void store_taps(const TensorPlace& p, const TapsPiece& piece, T* own,
                                           const float (&shared)[copy_tile]) {
  for (int k = static_cast<int>(threadIdx.x); k < piece.own_count * piece.own_taps; k += tile_threads) {
    const PieceElement element = piece_element(p, piece, k);
    narrow(element.shared < 0 ? 0.0f : shared[element.shared], own[element.own]);
  }
}

// The elements of the copy are contiguous, with `padded` elements per row. A row of the flat vector has only `inner` of
// them.
template <class T, bool home>
__device__ __forceinline__ void copy_rows(const CopyTensorsArguments& a, const TensorPlace& p, std::int64_t block) {
  T* own = static_cast<T*>(a.own) + p.own_offset;
  float* flat = a.flat + p.flat_offset;
  const std::int64_t count = p.outer * p.padded;
  const std::int64_t begin = block * copy_chunk, end = begin + copy_chunk < count ? begin + copy_chunk : count;
  const bool plain = p.padded == p.inner;
  if (plain && !home && end - begin == copy_chunk && aligned(own, flat)) {
    for (std::int64_t at = begin + 8 * threadIdx.x; at < end; at += 8 * tile_threads)
      store<T, true>(own, at, 8, load_floats<true>(flat, at, 8));
    return;
  }
  for (std::int64_t at = begin + threadIdx.x; at < end; at += tile_threads) {
    const std::int64_t row = plain ? 0 : quotient(at, p.padded), column = at - row * p.padded;
    const bool inside = plain || column < p.inner;
    const std::int64_t flat_at = row * p.inner + column;
    if constexpr (home) {
      if (inside) flat[flat_at] = (a.accumulate ? flat[flat_at] : 0.0f) + widen(own[at]);
    } else {
      narrow(inside ? flat[flat_at] : 0.0f, own[at]);
    }
  }
}

// Transposes the piece in shared memory, so that both sides are read and written along their rows.
template <class T, bool home>
__device__ __forceinline__ void copy_taps(const CopyTensorsArguments& a, const TensorPlace& p, std::int64_t block,
                                          float (&shared)[copy_tile]) {
  const TapsPiece piece = taps_piece(p, block);
  T* own = static_cast<T*>(a.own) + p.own_offset + piece.own;
  float* flat = a.flat + p.flat_offset + piece.flat;
  const auto thread = static_cast<int>(threadIdx.x);
  if constexpr (home) {
    for (int k = thread; k < piece.own_count * piece.own_taps; k += tile_threads) {
      const PieceElement element = piece_element(p, piece, k);
      if (element.shared >= 0) shared[element.shared] = widen(own[element.own]);
    }
    __syncthreads();
    for (int k = thread; k < piece.flat_count * p.taps; k += tile_threads)
      flat[k] = (a.accumulate ? flat[k] : 0.0f) + shared[k];
  } else {
    for (int k = thread; k < piece.flat_count * p.taps; k += tile_threads) shared[k] = flat[k];
    __syncthreads();
    store_taps(p, piece, own, shared);
  }
}

template <class T, bool home>
__device__ __forceinline__ void copy_tensor(const CopyTensorsArguments& a, float (&shared)[copy_tile]) {
  const TensorPlace place = place_of_block(a.places, a.count);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) - place.first_block;
  if (place.taps == 1)
    copy_rows<T, home>(a, place, block);
  else
    copy_taps<T, home>(a, place, block, shared);
}

template <class T>
__global__ void __launch_bounds__(tile_threads) copy_tensors_in(CopyTensorsArguments a) {
  RINGTRAIN_SHARED(float, shared, [copy_tile]);
  if (a.own_is_fp32)
    copy_tensor<float, false>(a, shared);
  else
    copy_tensor<T, false>(a, shared);
}

template <class T>
__global__ void __launch_bounds__(tile_threads) copy_tensors_home(CopyTensorsArguments a) {
  RINGTRAIN_SHARED(float, shared, [copy_tile]);
  if (a.own_is_fp32)
    copy_tensor<float, true>(a, shared);
  else
    copy_tensor<T, true>(a, shared);
}

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
