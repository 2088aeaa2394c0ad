// These kernels of batch norm touch every element. Groups are in blockIdx.z, tiles of rows in blockIdx.x, tiles of
// channels in blockIdx.y.
#pragma once

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/reduce.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Holds the position of this thread in its group. `affine` is the position in [groups][channels].
struct NormPlace {
  Walk walk;
  std::int64_t row0;  // rows before the group
  int channel, count;
  std::int64_t affine;
};
__device__ __forceinline__ NormPlace norm_place(std::int64_t rows_per_group, int channels) {
  NormPlace p;
  p.walk = walk(octets_of(channels), blockIdx.x, gridDim.x, blockIdx.y);
  p.row0 = static_cast<std::int64_t>(blockIdx.z) * rows_per_group;
  p.channel = 8 * p.walk.octet;
  p.count = octet_size(p.walk.octet, channels);
  p.affine = static_cast<std::int64_t>(blockIdx.z) * channels + p.channel;
  return p;
}

// A thread loads this number of rows at a time. The number is large enough to hide the latency of memory. It is small
// enough that a multiprocessor has the registers for two or three blocks.
template <class T, bool whole>
constexpr int rows_at_once = whole && sizeof(T) == 2 ? 2 : 1;

template <class T, bool whole>
__device__ __forceinline__ void norm_sums_rows(const NormSumsArguments& a, float (&sums)[16]) {
  constexpr int at_once = 2 * rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> x[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k)
      if (row + k * p.walk.step < a.rows_per_group)
        x[k] = load<T, whole>(a.x, (p.row0 + row + k * p.walk.step) * a.channels + p.channel, p.count);
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      const Eight v = widen(x[k]);
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) {
        sums[i] += v.v[i];
        sums[8 + i] += v.v[i] * v.v[i];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) norm_sums(NormSumsArguments a) {
  RINGTRAIN_SHARED(float, shared, [16 * tile_threads]);
  float sums[16] = {};
  if (a.channels % 8 == 0 && aligned(a.x))
    norm_sums_rows<T, true>(a, sums);
  else
    norm_sums_rows<T, false>(a, sums);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * a.blocks + blockIdx.x;
  column_totals<2>(sums, a.channels, blockIdx.y, a.partial + block * 2 * a.channels, shared);
}

template <class T, bool whole>
__device__ __forceinline__ void norm_apply_rows(const NormApplyArguments& a) {
  constexpr int at_once = rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const Eight scale = load_floats<whole>(a.scale, p.affine, p.count);
  Eight bias = load_floats<whole>(a.bias, p.affine, p.count);
  Eight other_scale;
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) other_scale.v[i] = 1;
  if (a.other_scale != nullptr) {
    other_scale = load_floats<whole>(a.other_scale, p.affine, p.count);
    const Eight other_bias = load_floats<whole>(a.other_bias, p.affine, p.count);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) bias.v[i] += other_bias.v[i];
  }
  const std::int64_t mask_bytes = octets_of(a.channels);
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> x[at_once] = {}, other[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = (p.row0 + row + k * p.walk.step) * a.channels + p.channel;
      x[k] = load<T, whole>(a.x, at, p.count);
      if (a.other != nullptr) other[k] = load<T, whole>(a.other, at, p.count);
    }
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = p.row0 + row + k * p.walk.step;
      Eight y = widen(x[k]);
      const Eight o = widen(other[k]);
      unsigned bits = 0;
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) {
        y.v[i] = y.v[i] * scale.v[i] + bias.v[i];
        if (a.other != nullptr) y.v[i] += o.v[i] * other_scale.v[i];
        bits |= (!a.relu || y.v[i] > 0) && i < p.count ? 1u << i : 0u;
        if (a.relu && y.v[i] < 0) y.v[i] = 0;  // NaN stays
      }
      store<T, whole>(a.y, at * a.channels + p.channel, p.count, y);
      if (a.mask != nullptr) a.mask[at * mask_bytes + p.walk.octet] = static_cast<std::uint8_t>(bits);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) norm_apply(NormApplyArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.other, a.y, a.scale, a.bias, a.other_scale, a.other_bias))
    norm_apply_rows<T, true>(a);
  else
    norm_apply_rows<T, false>(a);
}

// Returns dr, which is dy where the mask has a bit, else 0.
__device__ __forceinline__ Eight masked(Eight dy, unsigned bits) {
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) dy.v[i] = (bits >> i & 1) != 0 ? dy.v[i] : 0.0f;
  return dy;
}

template <class T, bool whole>
__device__ __forceinline__ void norm_backward_sums_rows(const NormBackwardSumsArguments& a, float (&sums)[24]) {
  constexpr int at_once = rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const std::int64_t mask_bytes = octets_of(a.channels);
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> dy[at_once] = {}, x[at_once] = {}, other[at_once] = {};
    unsigned bits[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = p.row0 + row + k * p.walk.step;
      dy[k] = load<T, whole>(a.dy, at * a.channels + p.channel, p.count);
      x[k] = load<T, whole>(a.x, at * a.channels + p.channel, p.count);
      if (a.other != nullptr) other[k] = load<T, whole>(a.other, at * a.channels + p.channel, p.count);
      bits[k] = a.mask == nullptr ? 0xffu : a.mask[at * mask_bytes + p.walk.octet];
    }
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      const Eight dr = masked(widen(dy[k]), bits[k]), v = widen(x[k]), o = widen(other[k]);
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) {
        sums[i] += dr.v[i];
        sums[8 + i] += dr.v[i] * v.v[i];
        if (a.other != nullptr) sums[16 + i] += dr.v[i] * o.v[i];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) norm_backward_sums(NormBackwardSumsArguments a) {
  RINGTRAIN_SHARED(float, shared, [24 * tile_threads]);
  float sums[24] = {};
  if (a.channels % 8 == 0 && aligned(a.dy, a.x, a.other))
    norm_backward_sums_rows<T, true>(a, sums);
  else
    norm_backward_sums_rows<T, false>(a, sums);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * a.blocks + blockIdx.x;
  if (a.other != nullptr) {
    column_totals<3>(sums, a.channels, blockIdx.y, a.partial + block * 3 * a.channels, shared);
  } else {
    float two[16];
    RINGTRAIN_UNROLL
    for (int i = 0; i < 16; ++i) two[i] = sums[i];
    column_totals<2>(two, a.channels, blockIdx.y, a.partial + block * 2 * a.channels, shared);
  }
}

// The coefficients of dx = a dr + b x + c for eight channels. along() computes dx.
struct Line {
  Eight a, b, c;
};
template <bool whole>
__device__ __forceinline__ Line line(const float* a, const float* b, const float* c, const NormPlace& p) {
  return {load_floats<whole>(a, p.affine, p.count), load_floats<whole>(b, p.affine, p.count),
          load_floats<whole>(c, p.affine, p.count)};
}
__device__ __forceinline__ Eight along(const Line& l, const Eight& dr, const Eight& x) {
  Eight d;
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) d.v[i] = l.a.v[i] * dr.v[i] + (l.b.v[i] * x.v[i] + l.c.v[i]);
  return d;
}

template <class T, bool whole, bool two>
__device__ __forceinline__ void norm_backward_apply_rows(const NormBackwardApplyArguments& a) {
  constexpr int at_once = two ? 1 : rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const Line own = line<whole>(a.a, a.b, a.c, p);
  Line others = own;
  if constexpr (two) others = line<whole>(a.other_a, a.other_b, a.other_c, p);
  const std::int64_t mask_bytes = octets_of(a.channels);
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> dy[at_once] = {}, x[at_once] = {}, other[at_once] = {};
    unsigned bits[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = p.row0 + row + k * p.walk.step;
      dy[k] = load<T, whole>(a.dy, at * a.channels + p.channel, p.count);
      x[k] = load<T, whole>(a.x, at * a.channels + p.channel, p.count);
      if constexpr (two) other[k] = load<T, whole>(a.other, at * a.channels + p.channel, p.count);
      bits[k] = a.mask == nullptr ? 0xffu : a.mask[at * mask_bytes + p.walk.octet];
    }
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = (p.row0 + row + k * p.walk.step) * a.channels + p.channel;
      const Eight dr = masked(widen(dy[k]), bits[k]);
      store<T, whole>(a.dx, at, p.count, along(own, dr, widen(x[k])));
      if (a.dr_output != nullptr) store<T, whole>(a.dr_output, at, p.count, dr);
      if constexpr (two) store<T, whole>(a.d_other, at, p.count, along(others, dr, widen(other[k])));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 2) norm_backward_apply(NormBackwardApplyArguments a) {
  const bool whole = a.channels % 8 == 0 && aligned(a.dy, a.x, a.other, a.dx, a.dr_output, a.d_other) &&
                     aligned(a.a, a.b, a.c, a.other_a, a.other_b, a.other_c);
  if (a.other == nullptr)
    whole ? norm_backward_apply_rows<T, true, false>(a) : norm_backward_apply_rows<T, false, false>(a);
  else
    whole ? norm_backward_apply_rows<T, true, true>(a) : norm_backward_apply_rows<T, false, true>(a);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
