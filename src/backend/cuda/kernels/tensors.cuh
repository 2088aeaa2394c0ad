// Copies tensors between the flat vector, which has PyTorch's order, and the layouts and types of a program's own
// copies.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

__device__ __forceinline__ std::int64_t first_block_of(const TensorPlace& place) {
  return place.first_block;
}
__device__ __forceinline__ std::int64_t first_block_of(const UpdatePlace& place) {
  return place.tensor.first_block;
}
__device__ __forceinline__ std::int64_t first_block_of(const NormRange& range) {
  return range.first_block;
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

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
