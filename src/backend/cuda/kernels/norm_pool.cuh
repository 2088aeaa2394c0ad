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

// Holds the maximum of a window so far, for eight channels.
struct Maximum {
  Eight best;
  Places places;
  __device__ __forceinline__ Maximum() {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      best.v[i] = -__builtin_inff();
      places.v[i] = no_gradient;
    }
  }
  // Among equal elements the first wins; NaN wins.
  template <class T>
  __device__ __forceinline__ void take(const Octet<T>& from, const Eight& scale, const Eight& bias, int place) {
    const Eight x = widen(from);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      const float y = x.v[i] * scale.v[i] + bias.v[i];
      const float relu = as_stored<T>(y < 0 ? 0.0f : y);
      const bool wins = relu > best.v[i] || relu != relu;
      best.v[i] = wins ? relu : best.v[i];
      places.v[i] = wins ? (y > 0 ? static_cast<std::uint8_t>(place) : no_gradient) : places.v[i];
    }
  }
};

template <class T, bool whole, bool usual>
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
    const auto element = [&](int r, int c) {
      return load<T, whole>(a.x, ((image * p.height + top + r) * p.width + left + c) * a.channels + channel, count);
    };
    Maximum maximum;
    if constexpr (usual) {
      Octet<T> x[9] = {};
      RINGTRAIN_UNROLL
      for (int k = 0; k < 9; ++k)
        if (top + k / 3 >= 0 && left + k % 3 >= 0) x[k] = element(k / 3, k % 3);
      RINGTRAIN_UNROLL
      for (int k = 0; k < 9; ++k)
        if (top + k / 3 >= 0 && left + k % 3 >= 0) maximum.take(x[k], scale, bias, k);
    } else {
      for (int r = row_begin; r < row_end; ++r)
        for (int c = column_begin; c < column_end; ++c) maximum.take(element(r, c), scale, bias, r * p.kernel + c);
    }
    const std::int64_t at = (image * p.out_height * p.out_width + pixel) * a.channels + channel;
    store<T, whole>(a.y, at, count, maximum.best);
    if (a.places != nullptr) store_places<whole>(a.places + at, count, maximum.places);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 2) norm_pool(NormPoolArguments a) {
  if (a.channels % 8 != 0 || !aligned(a.x, a.y, a.places, a.scale, a.bias))
    norm_pool_pixels<T, false, false>(a);
  else if (is_usual(a.window))
    norm_pool_pixels<T, true, sizeof(T) == 2>(a);
  else
    norm_pool_pixels<T, true, false>(a);
}

// Returns dr of a row. For each channel, dr is the sum of the gradients of the windows whose maximum is in this row.
template <class T, bool whole, class Arguments>
__device__ __forceinline__ Eight gather_gradient(const Arguments& a, std::int64_t row, int channel, int count) {
  const std::int64_t pixels = std::int64_t{a.window.height} * a.window.width, image = quotient(row, pixels);
  const WindowsOfPixel windows = windows_of(a.window, static_cast<int>(row - image * pixels));
  return gradient_of_windows<T, whole>(windows, a.window, a.dy, a.places, image, a.channels, channel, count);
}

// Returns whether a thread takes squares. In fp32, and with compute capability 10, it has too few registers for one.
template <class T>
__device__ __forceinline__ bool takes_squares([[maybe_unused]] const PoolWindow& window) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return false;
#else
  return sizeof(T) == 2 && is_usual(window);
#endif
}
// A Square holds 2 x 2 pixels of the map under usual windows. Its pixels have the numbers 0 to 3. Four windows reach
// it: the one at (row, column) of the pooled map, and its neighbours to the right, below, and both.
template <class T>
struct Square {
  std::int64_t first;  // row of pixel 0 in the map
  int width;           // of the map
  Octet<T> x[4];       // of the pixels
  Octet<T> dy[4];      // of the windows
  Places places[4];

  __device__ __forceinline__ std::int64_t row(int pixel) const { return first + pixel / 2 * width + pixel % 2; }
  // Returns dr as gather_gradient() does, with its order of additions.
  __device__ __forceinline__ Eight gradient(int pixel) const {
    Eight sum{};
    RINGTRAIN_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (k / 2 > pixel / 2 || k % 2 > pixel % 2) continue;
      const int place = (1 + pixel / 2 - 2 * (k / 2)) * 3 + 1 + pixel % 2 - 2 * (k % 2);
      const Eight d = widen(dy[k]);
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) sum.v[i] += places[k].v[i] == place ? d.v[i] : 0.0f;
    }
    return sum;
  }
};
// `number` counts the squares from row `row0` on, where an image begins.
template <class T, class Arguments>
__device__ __forceinline__ Square<T> load_square(const Arguments& a, std::int64_t row0, std::int64_t number,
                                                 int channel) {
  const PoolWindow& p = a.window;
  const std::int64_t before = quotient(number, p.out_height * p.out_width);
  const std::int64_t image = quotient(row0, std::int64_t{p.height} * p.width) + before;
  const auto place = static_cast<int>(number - before * p.out_height * p.out_width);
  const int row = place / p.out_width, column = place % p.out_width;
  Square<T> square{
      .first = (image * p.height + 2 * row) * p.width + 2 * column, .width = p.width, .x = {}, .dy = {}, .places = {}};
  RINGTRAIN_UNROLL
  for (int k = 0; k < 4; ++k) {
    if (row + k / 2 >= p.out_height || column + k % 2 >= p.out_width) continue;
    const std::int64_t window = (image * p.out_height + row + k / 2) * p.out_width + column + k % 2;
    square.dy[k] = load<T, true>(a.dy, window * a.channels + channel, 8);
    square.places[k] = load_places<true>(a.places + window * a.channels + channel, 8);
  }
  RINGTRAIN_UNROLL
  for (int pixel = 0; pixel < 4; ++pixel)
    square.x[pixel] = load<T, true>(a.x, square.row(pixel) * a.channels + channel, 8);
  return square;
}

template <class T>
__device__ __forceinline__ void norm_pool_backward_sums_squares(const NormPoolBackwardSumsArguments& a,
                                                                float (&sums)[16]) {
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  for (std::int64_t number = p.walk.row; number < a.rows_per_group / 4; number += p.walk.step) {
    const Square<T> square = load_square<T>(a, p.row0, number, p.channel);
    RINGTRAIN_UNROLL
    for (int pixel = 0; pixel < 4; ++pixel) {
      const Eight dr = square.gradient(pixel), v = widen(square.x[pixel]);
      add_to_sums(sums, dr, v);
    }
  }
}

template <class T, bool whole>
__device__ __forceinline__ void norm_pool_backward_sums_rows(const NormPoolBackwardSumsArguments& a,
                                                             float (&sums)[16]) {
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += p.walk.step) {
    const Octet<T> x = load<T, whole>(a.x, (p.row0 + row) * a.channels + p.channel, p.count);
    const Eight dr = gather_gradient<T, whole>(a, p.row0 + row, p.channel, p.count), v = widen(x);
    add_to_sums(sums, dr, v);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 2) norm_pool_backward_sums(NormPoolBackwardSumsArguments a) {
  RINGTRAIN_SHARED(float, shared, [16 * tile_threads]);
  float sums[16] = {};
  if (a.channels % 8 != 0 || !aligned(a.dy, a.x, a.places))
    norm_pool_backward_sums_rows<T, false>(a, sums);
  else if (!takes_squares<T>(a.window))
    norm_pool_backward_sums_rows<T, true>(a, sums);
  else if constexpr (sizeof(T) == 2)
    norm_pool_backward_sums_squares<T>(a, sums);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * a.blocks + blockIdx.x;
  column_totals<2>(sums, a.channels, blockIdx.y, a.partial + block * 2 * a.channels, shared);
}

template <class T>
__device__ __forceinline__ void norm_pool_backward_apply_squares(const NormPoolBackwardApplyArguments& a) {
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const Line own = line<true>(a.a, a.b, a.c, p);
  for (std::int64_t number = p.walk.row; number < a.rows_per_group / 4; number += p.walk.step) {
    const Square<T> square = load_square<T>(a, p.row0, number, p.channel);
    RINGTRAIN_UNROLL
    for (int pixel = 0; pixel < 4; ++pixel)
      store<T, true>(a.dx, square.row(pixel) * a.channels + p.channel, 8,
                     along(own, square.gradient(pixel), widen(square.x[pixel])));
  }
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
  if (a.channels % 8 != 0 || !aligned(a.dy, a.x, a.places, a.dx, a.a, a.b, a.c))
    norm_pool_backward_apply_rows<T, false>(a);
  else if (!takes_squares<T>(a.window))
    norm_pool_backward_apply_rows<T, true>(a);
  else if constexpr (sizeof(T) == 2)
    norm_pool_backward_apply_squares<T>(a);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
