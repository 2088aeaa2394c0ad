// Converts device memory of any element type to fp32 values and back, with one rounding.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cuda/types.h"
#include "base/small_floats.h"

namespace ringtrain::cuda {

// Rounds to a fraction of 10 bits, to nearest, with ties away from zero. Tensor cores round fp32 operands in this way.
inline float round_to_tf32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x7f800000u) == 0x7f800000u ? value : std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);
}

inline float round_to(Type type, float value) {
  return type == Type::fp32 ? value : type == Type::bf16 ? from_bf16(to_bf16(value)) : from_fp16(to_fp16(value));
}

inline std::vector<float> load(Type type, const void* from, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  if (type == Type::fp32) {
    std::memcpy(values.data(), from, values.size() * sizeof(float));
    return values;
  }
  const auto* bits = static_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = type == Type::bf16 ? from_bf16(bits[i]) : from_fp16(bits[i]);
  return values;
}

// `values` become the rounded values that are stored.
inline void store(Type type, void* to, std::vector<float>& values) {
  if (type == Type::fp32) {
    std::memcpy(to, values.data(), values.size() * sizeof(float));
    return;
  }
  auto* bits = static_cast<std::uint16_t*>(to);
  for (std::size_t i = 0; i < values.size(); ++i) {
    bits[i] = type == Type::bf16 ? to_bf16(values[i]) : to_fp16(values[i]);
    values[i] = type == Type::bf16 ? from_bf16(bits[i]) : from_fp16(bits[i]);
  }
}

}  // namespace ringtrain::cuda
