// Conversions between float and the bits of bf16 and fp16, rounded to nearest even. They are for files, not for
// arithmetic.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ringtrain {

inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // stays a NaN
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The format has 1 sign bit, 5 exponent bits (bias 15) and 10 fraction bits.
inline float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, fraction = bits & 0x3ffu;
  if (exponent == 0) return std::copysign(static_cast<float>(fraction) * 0x1p-24f, std::bit_cast<float>(sign));
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

// Values from 65520 on become infinity. Values below 2^-14 are rounded to multiples of 2^-24.
inline std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (size > 0x7f800000u)
    half = 0x7e00u;
  else if (size >= 0x477ff000u)
    half = 0x7c00u;
  else if (size >= 0x38800000u)
    half = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
  else
    half = static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(size) * 0x1p24f));
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace ringtrain
