// Converts pixels to the network's type and layout.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Stores four or eight values of one pixel at once.
template <class T, int count>
__device__ __forceinline__ void store_pixel(T* to, const float (&v)[4]) {
  if constexpr (count == 8) {
    store<T, true>(to, 0, 8, Eight{{v[0], v[1], v[2], v[3]}});
  } else if constexpr (sizeof(T) == 2) {
    struct alignas(8) Words {
      std::uint32_t words[2];
    };
    *reinterpret_cast<Words*>(to) = {{narrow_pair(v[0], v[1], T{}), narrow_pair(v[2], v[3], T{})}};
  } else {
    struct alignas(16) Words {
      float values[4];
    };
    *reinterpret_cast<Words*>(to) = {{v[0], v[1], v[2], v[3]}};
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) image_input(ImageInputArguments a) {
  const std::int64_t pixel = static_cast<std::int64_t>(blockIdx.x) * tile_threads + threadIdx.x;
  if (pixel >= a.pixel_count) return;
  float v[4] = {};
  RINGTRAIN_UNROLL
  for (int c = 0; c < 4; ++c)
    if (c < a.channels) v[c] = static_cast<float>(a.pixels[pixel * a.channels + c]) * a.scale[c] + a.shift[c];
  T* to = static_cast<T*>(a.output) + pixel * a.padded;
  if (a.padded == 4 && aligned(a.output)) {
    store_pixel<T, 4>(to, v);
  } else if (a.padded == 8 && aligned(a.output)) {
    store_pixel<T, 8>(to, v);
  } else {
    RINGTRAIN_UNROLL
    for (int c = 0; c < 4; ++c)
      if (c < a.padded) narrow(v[c], to[c]);
    for (int c = 4; c < a.padded; ++c) narrow(0.0f, to[c]);
  }
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
