// Formulas that CPU and GPU kernels share: elementary functions, bf16, the checksum of a vector, and which units
// dropout drops. nn/update_rule.h has those of the optimizers.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ringtrain {

// The functions have no branches, so the compiler can vectorise them. Those of the standard library would take as much
// time as the matrix products.

RINGTRAIN_HD float maximum(float a, float b) {
  return a > b ? a : b;
}
RINGTRAIN_HD std::uint32_t float_bits(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
RINGTRAIN_HD float bits_float(std::uint32_t x) {
  return __builtin_bit_cast(float, x);
}

// Computes e^x within 2 ulp (units in the last place) for x in [-87, 88]. Below -87.3 the result is 0. Above 88 it is
// the value at 88. NaN stays NaN. The polynomial is that of Cephes' expf.
RINGTRAIN_HD float fast_exp(float x) {
  const float bounded = x > 88.0f ? 88.0f : (x < -87.3f ? -87.3f : x);
  // Adding 1.5 x 2^23 rounds to the nearest integer. The integer is then in the low bits of the mantissa.
  const float shifted = bounded * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float value = bits_float(float_bits(p) + (float_bits(shifted) << 23));
  return x < -87.3f ? 0.0f : value;
}

// Computes tanh within 6 ulp, with Eigen's odd rational minimax approximation of degree 13 over 6. The input is clamped
// at the point where the result rounds to +-1. NaN stays NaN.
RINGTRAIN_HD float fast_tanh(float x) {
  const float c = 7.90531110763549805f;
  const float bounded = x > c ? c : (x < -c ? -c : x);
  const float x2 = bounded * bounded;
  float p = -2.76076847742355e-16f;
  p = p * x2 + 2.00018790482477e-13f;
  p = p * x2 + -8.60467152213735e-11f;
  p = p * x2 + 5.12229709037114e-08f;
  p = p * x2 + 1.48572235717979e-05f;
  p = p * x2 + 6.37261928875436e-04f;
  p = p * x2 + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * x2 + 1.18534705686654e-04f;
  q = q * x2 + 2.26843463243900e-03f;
  q = q * x2 + 4.89352518554385e-03f;
  return bounded * p / q;
}

RINGTRAIN_HD float fast_sigmoid(float x) {
  return 0.5f * fast_tanh(0.5f * x) + 0.5f;
}

// The bf16 format (brain floating point): 16 bits, rounded to nearest even.
struct BFloat16 {
  std::uint16_t bits;
};

RINGTRAIN_HD float to_float(float x) {
  return x;
}
RINGTRAIN_HD float to_float(BFloat16 x) {
  return bits_float(static_cast<std::uint32_t>(x.bits) << 16);
}

template <class T>
RINGTRAIN_HD T from_float(float x);
template <>
RINGTRAIN_HD float from_float<float>(float x) {
  return x;
}
template <>
RINGTRAIN_HD BFloat16 from_float<BFloat16>(float x) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A NaN must not round to infinity.
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

// The checksum with which ranks compare their copies of a vector. CPUs and GPUs use the same formula.
//
// The checksum is the sum, modulo 2^64, of checksum_term() over all 64-bit words (two fp32 values each). The sum has
// the same bits in any order, so threads and blocks may add in any order. A term is a bijection of its word. A change
// within one word, such as a flipped bit, is therefore always found. Other changes are missed once in 2^64 cases.

// Applies the finalizer of MurmurHash3 (Appleby 2011) to a word. The index of the word is mixed in, so that an exchange
// of two words is detected.
RINGTRAIN_HD std::uint64_t checksum_term(std::uint64_t word, std::uint64_t index) {
  std::uint64_t x = word ^ (index * 0x9E3779B97F4A7C15u);
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 33);
}

// Dropout (Srivastava et al. 2014). A unit is dropped if its 16 random bits are below this threshold. The random bits
// come from Philox, a counter-based generator (base/random.h). They depend on the place in the data, never on the rank
// or thread. One Philox block gives 16 bits to each of eight units, so the drop probability is a multiple of 1/65536.
// Among 128 neighbouring units, unit u takes half u / 64 of word (u / 16) % 4 of block u % 16. Neighbouring units are
// thus in neighbouring lanes of a vector register.
RINGTRAIN_HD std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(probability * 65536.0 + 0.5);
}
// Philox's counter. `low` has 32 bits of the global row, the lower 16 bits of the time step, and 16 bits of the block.
// `high` has the next 8 bits of the time step, 40 bits of the training step, and 16 bits of the layer. A time step of
// 2^24 or more would repeat the bits of an earlier time step; data.sequence allows at most 10^6.
struct DropoutCounter {
  std::uint64_t low, high;
};
RINGTRAIN_HD DropoutCounter dropout_counter(std::int64_t step, std::int64_t layer, std::int64_t global_row,
                                            std::int64_t time, std::int64_t block) {
  const auto t = static_cast<std::uint64_t>(time);
  return {(static_cast<std::uint64_t>(global_row) << 32) | ((t & 0xffffu) << 16) | static_cast<std::uint64_t>(block),
          (t >> 16 << 56) | (static_cast<std::uint64_t>(step) << 16) | static_cast<std::uint64_t>(layer)};
}

}  // namespace ringtrain
