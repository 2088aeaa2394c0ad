// Kernels for norms, ReLU and the residual addition over blocked activations, with as few passes over memory as
// possible. A call works on one unit: the pixels of one image and one block of `lanes` channels, [pixels][lanes].
#pragma once

#include <cstdint>

#include "backend/cpu/isa.h"
#include "nn/math.h"

namespace ringtrain::cpu {

// The coefficients of one block of channels: z = (x - mean) scale + beta. All arrays are [lanes].
struct Affine {
  const float *mean, *scale, *beta;
};

// y = activation(norm(x) + second). `second` is norm2(x2), plain x2, or absent.
template <class T>
struct NormForward {
  std::int64_t pixels;
  const T* x;
  const Affine* norm;   // null: x unchanged
  const T* second;      // null: none
  const Affine* norm2;  // null: `second` unchanged
  bool relu;
  T* y;
  std::uint8_t* mask;  // lanes / 8 bytes per pixel: y > 0; null: not wanted
};

// The first half of the backward pass computes dz, the gradient of z = norm(x) + second, and its sums over the unit.
// dz = d0 + d1 where the ReLU passes it, otherwise 0. The ReLU passes it where the bits of `mask` are set. Without a
// mask, it passes where `values` are positive. Without both and with `relu`, it passes where norm(x) is positive.
// Otherwise it passes everywhere.
template <class T>
struct NormBackwardSums {
  std::int64_t pixels;
  const T *d0, *d1;          // gradients of y from one or two consumers; d1 may be null
  const std::uint8_t* mask;  // lanes / 8 bytes per pixel; null: none
  const T* values;           // null: none
  bool relu;
  const T* x;  // null: no sums
  const Affine* norm;
  const T* x2;  // input of the second norm; null: none
  const float* mean2;
  T *dz, *dz2;    // may be d0 or d1; null: not wanted; dz2 is a copy of dz, only if x is null
  T* activation;  // relu(norm(x)), recomputed for a convolution's weight gradient; null: not wanted
  double* sums;   // [3][lanes]: dz, dz (x - mean), dz (x2 - mean2)
};

// The second half of the backward pass: dx = scale dz + slope (x - mean) + constant; dx2 likewise for the second norm.
template <class T>
struct NormBackwardApply {
  std::int64_t pixels;
  const T* dz;
  bool relu;  // dz is not masked yet; it passes where norm(x) is positive
  const T* x;
  const Affine* norm;
  const float *slope, *constant;  // [lanes]
  T* dx;                          // may be dz
  const T* x2;                    // null: none
  const Affine* norm2;
  const float *slope2, *constant2;
  T* dx2;  // may be dz
};

struct NormKernels {
  int lanes;
  // Computes the mean and the sum of squared differences from it, [2][lanes].
  void (*moments_f32)(std::int64_t pixels, const float* x, double* result);
  void (*moments_bf16)(std::int64_t pixels, const BFloat16* x, double* result);
  void (*forward_f32)(const NormForward<float>&);
  void (*forward_bf16)(const NormForward<BFloat16>&);
  void (*backward_sums_f32)(const NormBackwardSums<float>&);
  void (*backward_sums_bf16)(const NormBackwardSums<BFloat16>&);
  void (*backward_apply_f32)(const NormBackwardApply<float>&);
  void (*backward_apply_bf16)(const NormBackwardApply<BFloat16>&);

  void moments(std::int64_t pixels, const float* x, double* result) const { moments_f32(pixels, x, result); }
  void moments(std::int64_t pixels, const BFloat16* x, double* result) const { moments_bf16(pixels, x, result); }
  void forward(const NormForward<float>& a) const { forward_f32(a); }
  void forward(const NormForward<BFloat16>& a) const { forward_bf16(a); }
  void backward_sums(const NormBackwardSums<float>& a) const { backward_sums_f32(a); }
  void backward_sums(const NormBackwardSums<BFloat16>& a) const { backward_sums_bf16(a); }
  void backward_apply(const NormBackwardApply<float>& a) const { backward_apply_f32(a); }
  void backward_apply(const NormBackwardApply<BFloat16>& a) const { backward_apply_bf16(a); }
};

const NormKernels& norm_kernels(Isa isa);

}  // namespace ringtrain::cpu
