// These kernels join batch norm, ReLU and max pooling. The norm's result, ResNet's largest map, is never in memory. The
// forward pass stores the place of each window's maximum. The backward pass gathers the gradient through the windows
// when it is needed.
#pragma once

#include "backend/cuda/kernels/norm.cuh"
#include "backend/cuda/kernels/pool.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Rounds a value to T once, as norm_apply does when it stores the value. So each window has the same maximum as when
// the map is in memory.
template <class T>
__device__ __forceinline__ float as_stored(float value) {
  T stored;
  narrow(value, stored);
  return widen(stored);
}

template <class T, bool whole>
__device__ __forceinline__ void norm_pool_pixels(const NormPoolArguments& a) {
  const Walk w = walk(octets_of(a.channels), blockIdx.x, gridDim.x, blockIdx.z);
  const int channel = 8 * w.octet, count = octet_size(w.octet, a.channels);
  const PoolWindow& p = a.window;
  if (!w.active || w.row >= p.out_height * p.out_width) return;
  const auto pixel = static_cast<int>(w.row);
  const int top = pixel / p.out_width * p.stride - p.padding, left = pixel % p.out_width * p.stride - p.padding;
  const int row_begin = larger(0, -top), row_end = smaller(p.kernel, p.height - top);
  const int column_begin = larger(0, -left), column_end = smaller(p.kernel, p.width - left);
  for (std::int64_t image = blockIdx.y; image < a.samples; image += gridDim.y) {
    const std::int64_t affine = quotient(image, a.samples_per_group) * a.channels + channel;
    const Eight scale = load_floats<whole>(a.scale, affine, count), bias = load_floats<whole>(a.bias, affine, count);
    Eight best;
    Places places;
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      best.v[i] = -__builtin_inff();
      places.v[i] = no_gradient;
    }
    for (int r = row_begin; r < row_end; ++r)
      for (int c = column_begin; c < column_end; ++c) {
        const std::int64_t at = (image * p.height + top + r) * p.width + left + c;
        const Eight x = widen(load<T, whole>(a.x, at * a.channels + channel, count));
        RINGTRAIN_UNROLL
        for (int i = 0; i < 8; ++i) {
          const float y = x.v[i] * scale.v[i] + bias.v[i];
          const float relu = as_stored<T>(y < 0 ? 0.0f : y);
          const bool wins = relu > best.v[i] || relu != relu;  // among equal elements the first wins; NaN wins
          best.v[i] = wins ? relu : best.v[i];
          const auto place = y > 0 ? static_cast<std::uint8_t>(r * p.kernel + c) : no_gradient;
          places.v[i] = wins ? place : places.v[i];
        }
      }
    const std::int64_t at = (image * p.out_height * p.out_width + pixel) * a.channels + channel;
    store<T, whole>(a.y, at, count, best);
    if (a.places != nullptr) store_places<whole>(a.places + at, count, places);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 2) norm_pool(NormPoolArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.y, a.places, a.scale, a.bias))
    norm_pool_pixels<T, true>(a);
  else
    norm_pool_pixels<T, false>(a);
}

// Returns dr of a row. For each channel, dr is the sum of the gradients of the windows whose maximum is in this row.
template <class T, bool whole, class Arguments>
__device__ __forceinline__ Eight gather_gradient(const Arguments& a, std::int64_t row, int channel, int count) {
  const std::int64_t pixels = std::int64_t{a.window.height} * a.window.width, image = quotient(row, pixels);
  const WindowsOfPixel windows = windows_of(a.window, static_cast<int>(row - image * pixels));
  return gradient_of_windows<T, whole>(windows, a.window, a.dy, a.places, image, a.channels, channel, count);
}

template <class T, bool whole>
__device__ __forceinline__ void norm_pool_backward_sums_rows(const NormPoolBackwardSumsArguments& a,
                                                             float (&sums)[16]) {
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += p.walk.step) {
    const Octet<T> x = load<T, whole>(a.x, (p.row0 + row) * a.channels + p.channel, p.count);
    const Eight dr = gather_gradient<T, whole>(a, p.row0 + row, p.channel, p.count), v = widen(x);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      sums[i] += dr.v[i];
      sums[8 + i] += dr.v[i] * v.v[i];
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) norm_pool_backward_sums(NormPoolBackwardSumsArguments a) {
  RINGTRAIN_SHARED(float, shared, [16 * tile_threads]);
  float sums[16] = {};
  if (a.channels % 8 == 0 && aligned(a.dy, a.x, a.places))
    norm_pool_backward_sums_rows<T, true>(a, sums);
  else
    norm_pool_backward_sums_rows<T, false>(a, sums);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * a.blocks + blockIdx.x;
  column_totals<2>(sums, a.channels, blockIdx.y, a.partial + block * 2 * a.channels, shared);
}

template <class T, bool whole>
__device__ __forceinline__ void norm_pool_backward_apply_rows(const NormPoolBackwardApplyArguments& a) {
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const Line own = line<whole>(a.a, a.b, a.c, p);
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += p.walk.step) {
    const std::int64_t at = (p.row0 + row) * a.channels + p.channel;
    const Octet<T> x = load<T, whole>(a.x, at, p.count);
    const Eight dr = gather_gradient<T, whole>(a, p.row0 + row, p.channel, p.count);
    store<T, whole>(a.dx, at, p.count, along(own, dr, widen(x)));
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 2) norm_pool_backward_apply(NormPoolBackwardApplyArguments a) {
  if (a.channels % 8 == 0 && aligned(a.dy, a.x, a.places, a.dx, a.a, a.b, a.c))
    norm_pool_backward_apply_rows<T, true>(a);
  else
    norm_pool_backward_apply_rows<T, false>(a);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
