// These kernels compute pooling and the flattening that follows it. In most of them, pixels of one image are in
// blockIdx.x, images in blockIdx.y, and tiles of channels in blockIdx.z. average_pool has images in blockIdx.x, and
// reorder has squares of one image there.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

__device__ __forceinline__ int larger(int a, int b) {
  return a > b ? a : b;
}
__device__ __forceinline__ int smaller(int a, int b) {
  return a < b ? a : b;
}

// Holds the places of eight maxima (PoolArguments::places). They are one access when the octet is whole.
struct alignas(8) Places {
  std::uint8_t v[8];
};
template <bool whole>
__device__ __forceinline__ Places load_places(const std::uint8_t* from, int count) {
  if constexpr (whole) {
    return *reinterpret_cast<const Places*>(from);
  } else {
    Places places{};
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i)
      if (i < count) places.v[i] = from[i];
    return places;
  }
}
template <bool whole>
__device__ __forceinline__ void store_places(std::uint8_t* to, int count, const Places& places) {
  if constexpr (whole) {
    *reinterpret_cast<Places*>(to) = places;
  } else {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i)
      if (i < count) to[i] = places.v[i];
  }
}

template <class T, bool whole>
__device__ __forceinline__ void max_pool_pixels(const PoolArguments& a) {
  const Walk w = walk(octets_of(a.channels), blockIdx.x, gridDim.x, blockIdx.z);
  const int channel = 8 * w.octet, count = octet_size(w.octet, a.channels);
  if (!w.active || w.row >= a.out_height * a.out_width) return;
  const auto pixel = static_cast<int>(w.row);
  const int top = pixel / a.out_width * a.stride - a.padding, left = pixel % a.out_width * a.stride - a.padding;
  const int row_begin = larger(0, -top), row_end = smaller(a.kernel, a.height - top);
  const int column_begin = larger(0, -left), column_end = smaller(a.kernel, a.width - left);
  for (std::int64_t image = blockIdx.y; image < a.samples; image += gridDim.y) {
    Eight best;
    Places places;
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      best.v[i] = -__builtin_inff();
      places.v[i] = static_cast<std::uint8_t>(row_begin * a.kernel + column_begin);
    }
    for (int r = row_begin; r < row_end; ++r)
      for (int c = column_begin; c < column_end; ++c) {
        const std::int64_t at = (image * a.height + top + r) * a.width + left + c;
        const Eight x = widen(load<T, whole>(a.x, at * a.channels + channel, count));
        RINGTRAIN_UNROLL
        for (int i = 0; i < 8; ++i) {
          const bool wins = x.v[i] > best.v[i] || x.v[i] != x.v[i];  // among equal elements the first wins; NaN wins
          best.v[i] = wins ? x.v[i] : best.v[i];
          places.v[i] = wins ? static_cast<std::uint8_t>(r * a.kernel + c) : places.v[i];
        }
      }
    const std::int64_t at = (image * a.out_height * a.out_width + pixel) * a.channels + channel;
    store<T, whole>(a.y, at, count, best);
    if (a.places != nullptr) store_places<whole>(a.places + at, count, places);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) max_pool(PoolArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.y, a.places))
    max_pool_pixels<T, true>(a);
  else
    max_pool_pixels<T, false>(a);
}

// Describes the windows that contain a pixel of the input.
struct WindowsOfPixel {
  int row, column;  // in the padded input
  int row_begin, row_end, column_begin, column_end;
};
__device__ __forceinline__ WindowsOfPixel windows_of(const PoolWindow& p, int pixel) {
  WindowsOfPixel w;
  w.row = pixel / p.width + p.padding;
  w.column = pixel % p.width + p.padding;
  w.row_begin = w.row < p.kernel ? 0 : (w.row - p.kernel) / p.stride + 1;
  w.column_begin = w.column < p.kernel ? 0 : (w.column - p.kernel) / p.stride + 1;
  w.row_end = smaller(p.out_height, w.row / p.stride + 1);
  w.column_end = smaller(p.out_width, w.column / p.stride + 1);
  return w;
}
// Adds up the gradients of the windows whose maximum is at this pixel, for eight channels and in a fixed order. dy and
// `places` have the shape of the pooled map.
template <class T, bool whole>
__device__ __forceinline__ Eight gradient_of_windows(const WindowsOfPixel& w, const PoolWindow& p, const void* dy,
                                                     const std::uint8_t* places, std::int64_t image, int channels,
                                                     int channel, int count) {
  Eight sum{};
  for (int r = w.row_begin; r < w.row_end; ++r)
    for (int c = w.column_begin; c < w.column_end; ++c) {
      const int place = (w.row - r * p.stride) * p.kernel + w.column - c * p.stride;
      const std::int64_t at = ((image * p.out_height + r) * p.out_width + c) * channels + channel;
      const Places winners = load_places<whole>(places + at, count);
      const Eight d = widen(load<T, whole>(dy, at, count));
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) sum.v[i] += winners.v[i] == place ? d.v[i] : 0.0f;
    }
  return sum;
}

// Every input pixel gathers the gradients of the windows that contain it. Each result is written once and in a fixed
// order, without atomics.
template <class T, bool whole>
__device__ __forceinline__ void max_pool_backward_pixels(const PoolArguments& a) {
  const Walk w = walk(octets_of(a.channels), blockIdx.x, gridDim.x, blockIdx.z);
  const int channel = 8 * w.octet, count = octet_size(w.octet, a.channels);
  if (!w.active || w.row >= a.height * a.width) return;
  const auto pixel = static_cast<int>(w.row);
  const PoolWindow window{a.height, a.width, a.out_height, a.out_width, a.kernel, a.stride, a.padding};
  const WindowsOfPixel windows = windows_of(window, pixel);
  for (std::int64_t image = blockIdx.y; image < a.samples; image += gridDim.y) {
    const Eight sum = gradient_of_windows<T, whole>(windows, window, a.x, a.places, image, a.channels, channel, count);
    store<T, whole>(a.y, (image * a.height * a.width + pixel) * a.channels + channel, count, sum);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) max_pool_backward(PoolArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.y, a.places))
    max_pool_backward_pixels<T, true>(a);
  else
    max_pool_backward_pixels<T, false>(a);
}

// Here the rows of the walk are images.
template <class T, bool whole>
__device__ __forceinline__ void average_pool_images(const PoolArguments& a) {
  constexpr int at_once = 4;
  const Walk w = walk(octets_of(a.channels), blockIdx.x, gridDim.x, blockIdx.z);
  const int channel = 8 * w.octet, count = octet_size(w.octet, a.channels), pixels = a.height * a.width;
  if (!w.active) return;
  for (std::int64_t image = w.row; image < a.samples; image += w.step) {
    Eight sum{};
    for (int pixel = 0; pixel < pixels; pixel += at_once) {
      Octet<T> x[at_once] = {};
      RINGTRAIN_UNROLL
      for (int k = 0; k < at_once; ++k)
        if (pixel + k < pixels) x[k] = load<T, whole>(a.x, (image * pixels + pixel + k) * a.channels + channel, count);
      RINGTRAIN_UNROLL
      for (int k = 0; k < at_once; ++k) {
        const Eight v = widen(x[k]);
        RINGTRAIN_UNROLL
        for (int i = 0; i < 8; ++i) sum.v[i] += v.v[i];
      }
    }
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) sum.v[i] /= static_cast<float>(pixels);
    store<T, whole>(a.y, image * a.channels + channel, count, sum);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) average_pool(PoolArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.y))
    average_pool_images<T, true>(a);
  else
    average_pool_images<T, false>(a);
}

template <class T, bool whole>
__device__ __forceinline__ void average_pool_backward_pixels(const PoolArguments& a) {
  const Walk w = walk(octets_of(a.channels), blockIdx.x, gridDim.x, blockIdx.z);
  const int channel = 8 * w.octet, count = octet_size(w.octet, a.channels), pixels = a.height * a.width;
  if (!w.active) return;
  for (std::int64_t image = blockIdx.y; image < a.samples; image += gridDim.y) {
    Eight d = widen(load<T, whole>(a.x, image * a.channels + channel, count));
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) d.v[i] /= static_cast<float>(pixels);
    for (std::int64_t pixel = w.row; pixel < pixels; pixel += w.step)
      store<T, whole>(a.y, (image * pixels + pixel) * a.channels + channel, count, d);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) average_pool_backward(PoolArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.y))
    average_pool_backward_pixels<T, true>(a);
  else
    average_pool_backward_pixels<T, false>(a);
}

// Transposes each image in squares through shared memory. The source is therefore read along its rows, and the result
// is written along its rows.
template <class T>
__global__ void __launch_bounds__(tile_threads) reorder(ReorderArguments a) {
  RINGTRAIN_SHARED(T, square, [reorder_tile][reorder_tile + 1]);
  const int rows = a.inverse ? a.channels : a.spatial, columns = a.inverse ? a.spatial : a.channels;  // `from`
  const int across = columns / reorder_tile + (columns % reorder_tile != 0);
  const auto tile = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % reorder_tile;
  const int row0 = tile / across * reorder_tile, column0 = tile % across * reorder_tile;
  for (std::int64_t image = blockIdx.y; image < a.samples; image += gridDim.y) {
    const std::int64_t at = image * rows * columns;
    const T* from = static_cast<const T*>(a.from) + at;
    T* to = static_cast<T*>(a.to) + at;
    for (int r = static_cast<int>(threadIdx.x) / reorder_tile; r < reorder_tile; r += tile_threads / reorder_tile)
      if (row0 + r < rows && column0 + lane < columns)
        square[r][lane] = from[static_cast<std::int64_t>(row0 + r) * columns + column0 + lane];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x) / reorder_tile; c < reorder_tile; c += tile_threads / reorder_tile)
      if (column0 + c < columns && row0 + lane < rows)
        to[static_cast<std::int64_t>(column0 + c) * rows + row0 + lane] = square[lane][c];
    __syncthreads();
  }
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
