// This file has the types of elements in device memory.
#pragma once

#include <cstdint>

namespace ringtrain::cuda {

enum class Type { fp32, bf16, fp16 };

inline std::int64_t bytes_of(Type type) {
  return type == Type::fp32 ? 4 : 2;
}
inline const char* type_name(Type type) {
  return type == Type::fp32 ? "fp32" : type == Type::bf16 ? "bf16" : "fp16";
}

// Names the arithmetic of matrix products and convolutions. With tf32, fp32 values are multiplied as TF32, which has
// fractions of 10 bits.
enum class Math { fp32, tf32, half };

}  // namespace ringtrain::cuda
