// These kernels compute bias, ReLU, sums over columns and addition, for layers without a norm.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

template <class T, bool whole>
__device__ __forceinline__ void activate_rows(const ActivateArguments& a) {
  const Walk w = walk(octets_of(a.channels), blockIdx.x, gridDim.x, blockIdx.y);
  if (!w.active) return;
  const int channel = 8 * w.octet, count = octet_size(w.octet, a.channels);
  Eight bias{};
  if (a.bias != nullptr) bias = load_floats<whole>(a.bias, channel, count);
  for (std::int64_t row = w.row; row < a.rows; row += w.step) {
    const std::int64_t at = row * a.channels + channel;
    Eight y = widen(load<T, whole>(a.x, at, count));
    unsigned bits = 0;
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      y.v[i] += bias.v[i];
      bits |= (!a.relu || y.v[i] > 0) && i < count ? 1u << i : 0u;
      if (a.relu && y.v[i] < 0) y.v[i] = 0;  // NaN stays
    }
    store<T, whole>(a.y, at, count, y);
    if (a.mask != nullptr) a.mask[row * octets_of(a.channels) + w.octet] = static_cast<std::uint8_t>(bits);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) activate(ActivateArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.bias, a.y))
    activate_rows<T, true>(a);
  else
    activate_rows<T, false>(a);
}

template <class T, bool whole>
__device__ __forceinline__ void activate_backward_rows(const ActivateBackwardArguments& a) {
  const Walk w = walk(octets_of(a.channels), blockIdx.x, gridDim.x, blockIdx.y);
  if (!w.active) return;
  const int count = octet_size(w.octet, a.channels);
  for (std::int64_t row = w.row; row < a.rows; row += w.step) {
    const std::int64_t at = row * a.channels + 8 * w.octet;
    Eight d = widen(load<T, whole>(a.dy, at, count));
    const unsigned bits = a.mask[row * octets_of(a.channels) + w.octet];
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) d.v[i] = (bits >> i & 1) != 0 ? d.v[i] : 0.0f;
    store<T, whole>(a.dx, at, count, d);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) activate_backward(ActivateBackwardArguments a) {
  if (a.channels % 8 == 0 && aligned(a.dy, a.dx))
    activate_backward_rows<T, true>(a);
  else
    activate_backward_rows<T, false>(a);
}

// Sums eight columns over the rows of this thread. A whole octet may contain elements after the last column; their sums
// are not used.
template <class T, bool whole>
__device__ __forceinline__ void column_sums_rows(const ColumnSumPartsArguments& a, float (&sums)[8]) {
  constexpr int at_once = 4;
  const Walk w = walk(octets_of(a.columns), blockIdx.x, gridDim.x, blockIdx.y);
  if (!w.active) return;
  const int column = 8 * w.octet, count = octet_size(w.octet, a.columns);
  for (std::int64_t row = w.row; row < a.rows; row += at_once * w.step) {
    Octet<T> x[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k)
      if (row + k * w.step < a.rows) x[k] = load<T, whole>(a.x, (row + k * w.step) * a.stride + column, count);
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      const Eight v = widen(x[k]);
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) sums[i] += v.v[i];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) column_sum_parts(ColumnSumPartsArguments a) {
  RINGTRAIN_SHARED(float, shared, [8 * tile_threads]);
  float sums[8] = {};
  if (a.stride % 8 == 0 && aligned(a.x))
    column_sums_rows<T, true>(a, sums);
  else
    column_sums_rows<T, false>(a, sums);
  column_totals<1>(sums, a.columns, blockIdx.y, a.partial + static_cast<std::int64_t>(blockIdx.x) * a.columns, shared);
}

// A block has finalize_channels columns. For each column finalize_parts threads add up the partial sums, in double
// precision.
template <class>
__global__ void __launch_bounds__(finalize_channels* finalize_parts) column_sums(ColumnSumsArguments a) {
  RINGTRAIN_SHARED(double, parts, [finalize_parts][finalize_channels]);
  const auto lane = static_cast<int>(threadIdx.x) % finalize_channels;
  const auto part = static_cast<int>(threadIdx.x) / finalize_channels;
  const int column = static_cast<int>(blockIdx.x) * finalize_channels + lane;
  double sum = 0;
  if (column < a.columns) {
    RINGTRAIN_UNROLL_FOUR
    for (int block = part; block < a.blocks; block += finalize_parts)
      sum += static_cast<double>(a.partial[static_cast<std::int64_t>(block) * a.columns + column]);
  }
  parts[part][lane] = sum;
  __syncthreads();
  if (part != 0 || column >= a.columns) return;
  double total = 0;
  for (int i = 0; i < finalize_parts; ++i) total += parts[i][lane];
  set_or_add(a.sums + column, total, a.accumulate);
}

template <class T, bool whole>
__device__ __forceinline__ void add_octet(const AddArguments& a, std::int64_t at, int count) {
  Eight sum = widen(load<T, whole>(a.a, at, count));
  const Eight b = widen(load<T, whole>(a.b, at, count));
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) sum.v[i] += b.v[i];
  store<T, whole>(a.y, at, count, sum);
}

template <class T>
__global__ void __launch_bounds__(tile_threads) add(AddArguments a) {
  const std::int64_t at = 8 * (static_cast<std::int64_t>(blockIdx.x) * tile_threads + threadIdx.x);
  if (at >= a.count) return;
  if (a.count - at >= 8 && aligned(a.a, a.b, a.y))
    add_octet<T, true>(a, at, 8);
  else
    add_octet<T, false>(a, at, a.count - at < 8 ? static_cast<int>(a.count - at) : 8);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
