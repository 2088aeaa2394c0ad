// Converts pixels to the network's type and layout.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Says for each channel of a window where its pixel is and how it is scaled. Padding has the factors 0. A thread reads
// eight channels at once, because single words of neighbouring threads would lie in the same banks of shared memory.
struct WindowTable {
  alignas(16) int offset[widest_image_window];  // bytes from the first pixel of the window
  alignas(16) float scale[widest_image_window], shift[widest_image_window];
  int row[widest_image_window], column[widest_image_window];
};
struct alignas(16) EightOffsets {
  int v[8];
};

__device__ __forceinline__ void fill_table(const ImageInputArguments& a, WindowTable& table) {
  const ImageWindows& w = a.windows;
  for (int i = static_cast<int>(threadIdx.x); i < a.padded; i += tile_threads) {
    const int tap = i / a.channels, channel = i % a.channels;
    const bool inside = tap < w.kernel * w.kernel;
    const int row = inside ? tap / w.kernel : 0, column = inside ? tap % w.kernel : 0;
    float scale = a.scale[0], shift = a.shift[0];
    RINGTRAIN_UNROLL
    for (int c = 1; c < 4; ++c) {  // an index that the compiler does not know would move the arguments to local memory
      scale = c == channel ? a.scale[c] : scale;
      shift = c == channel ? a.shift[c] : shift;
    }
    table.offset[i] = inside ? (row * w.width + column) * a.channels + channel : 0;
    table.scale[i] = inside ? scale : 0.0f;
    table.shift[i] = inside ? shift : 0.0f;
    table.row[i] = row;
    table.column[i] = column;
  }
}

// A thread makes eight channels of a window at a time. Blocks have windows of one image in x, and images in y.
template <class T, bool whole>
__device__ __forceinline__ void window_octets(const ImageInputArguments& a, const WindowTable& table) {
  const ImageWindows& w = a.windows;
  const int octets = a.padded / 8, windows = w.out_height * w.out_width;
  const auto images = static_cast<int>(quotient(a.pixel_count, windows));
  for (int image = static_cast<int>(blockIdx.y); image < images; image += static_cast<int>(gridDim.y)) {
    const std::uint8_t* const pixels = a.pixels + static_cast<std::int64_t>(image) * w.height * w.width * a.channels;
    for (int at = static_cast<int>(blockIdx.x * tile_threads + threadIdx.x); at < windows * octets;
         at += static_cast<int>(gridDim.x * tile_threads)) {
      const int window = at / octets, first = 8 * (at - window * octets);
      const int out_row = window / w.out_width;
      const int top = out_row * w.stride - w.padding, left = (window - out_row * w.out_width) * w.stride - w.padding;
      const int corner = (top * w.width + left) * a.channels;
      const auto offsets = *reinterpret_cast<const EightOffsets*>(table.offset + first);
      const Eight scale = load_floats<true>(table.scale, first, 8), shift = load_floats<true>(table.shift, first, 8);
      Eight values{};
      if (top >= 0 && left >= 0 && top + w.kernel <= w.height && left + w.kernel <= w.width) {
        RINGTRAIN_UNROLL
        for (int i = 0; i < 8; ++i)
          values.v[i] = static_cast<float>(pixels[corner + offsets.v[i]]) * scale.v[i] + shift.v[i];
      } else {
        RINGTRAIN_UNROLL
        for (int i = 0; i < 8; ++i) {
          const int row = top + table.row[first + i], column = left + table.column[first + i];
          if (row < 0 || column < 0 || row >= w.height || column >= w.width) continue;
          values.v[i] = static_cast<float>(pixels[corner + offsets.v[i]]) * scale.v[i] + shift.v[i];
        }
      }
      const std::int64_t to = (static_cast<std::int64_t>(image) * windows + window) * a.padded + first;
      store<T, whole>(a.output, to, 8, values);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) image_input(ImageInputArguments a) {
  RINGTRAIN_SHARED(WindowTable, table, [1]);
  if (a.windows.kernel > 0) {
    fill_table(a, table[0]);
    __syncthreads();
    if (aligned(a.output))
      window_octets<T, true>(a, table[0]);
    else
      window_octets<T, false>(a, table[0]);
    return;
  }
  const std::int64_t pixel = static_cast<std::int64_t>(blockIdx.x) * tile_threads + threadIdx.x;
  if (pixel >= a.pixel_count) return;
  Four v{};
  RINGTRAIN_UNROLL
  for (int c = 0; c < 4; ++c)
    if (c < a.channels) v.v[c] = static_cast<float>(a.pixels[pixel * a.channels + c]) * a.scale[c] + a.shift[c];
  T* to = static_cast<T*>(a.output) + pixel * a.padded;
  if (a.padded == 4 && aligned(a.output)) {
    store_whole(to, v);
  } else if (a.padded == 8 && aligned(a.output)) {
    store<T, true>(to, 0, 8, Eight{{v.v[0], v.v[1], v.v[2], v.v[3]}});
  } else {
    RINGTRAIN_UNROLL
    for (int c = 0; c < 4; ++c)
      if (c < a.padded) narrow(v.v[c], to[c]);
    for (int c = 4; c < a.padded; ++c) narrow(0.0f, to[c]);
  }
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
