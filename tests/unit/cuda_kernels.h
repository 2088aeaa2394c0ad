// Device memory and values for tests that run the GPU's own kernels on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/kernels/kernels.h"
#include "base/random.h"
#include "base/small_floats.h"
#include "tests/emulation/emulated_kernels.h"

namespace ringtrain::cuda {

constexpr Type all_types[] = {Type::fp32, Type::bf16, Type::fp16};

inline float rounded(Type type, double value) {
  const auto x = static_cast<float>(value);
  return type == Type::fp32 ? x : type == Type::bf16 ? from_bf16(to_bf16(x)) : from_fp16(to_fp16(x));
}

// Runs the kernels of the tests. Here they are emulated, and tests/gpu replaces this function to run them on a GPU.
// `memory` holds everything that the arguments point to.
inline std::function<void(const KernelLaunch&, std::span<std::byte> memory)> run_kernel =
    [](const KernelLaunch& launch, std::span<std::byte>) { run_emulated(launch); };

// Elements of one type in a test's memory.
struct Array {
  Type type = Type::fp32;
  std::byte* data = nullptr;
  std::int64_t count = 0;

  double operator[](std::int64_t i) const {
    if (type == Type::fp32) return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
    const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(data)[i];
    return static_cast<double>(type == Type::bf16 ? from_bf16(bits) : from_fp16(bits));
  }
  void set(std::int64_t i, double value) const {
    const auto x = static_cast<float>(value);
    if (type == Type::fp32)
      reinterpret_cast<float*>(data)[i] = x;
    else
      reinterpret_cast<std::uint16_t*>(data)[i] = type == Type::bf16 ? to_bf16(x) : to_fp16(x);
  }
  const Array& fill(double value) const {
    for (std::int64_t i = 0; i < count; ++i) set(i, value);
    return *this;
  }
  const Array& normal(std::uint64_t key, double deviation = 1, double mean = 0) const {
    for (std::int64_t i = 0; i < count; ++i)
      set(i, mean + deviation * random_normal(key, static_cast<std::uint64_t>(i)));
    return *this;
  }
  float* floats() const { return reinterpret_cast<float*>(data); }
};

// The memory of a test. Guards before and after every array find writes outside of it. An array begins at a multiple of
// 64 bytes, or `shift` elements after one. Memory that was never written holds NaNs.
class TestMemory {
 public:
  Array array(Type type, std::int64_t count, std::int64_t shift = 0) {
    return {type, take(count * bytes_of(type), shift * bytes_of(type)), count};
  }
  template <class T>
  T* make(std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T)), 0));
  }

  void run_once(const KernelLaunch& launch) { run_kernel(launch, {memory_.get(), used_}); }
  // Runs the launch with threads and blocks in both orders. Both must give the same bits and leave the guards as they
  // were.
  void run(const KernelLaunch& launch) { run(std::vector{launch}); }
  void run(const std::vector<KernelLaunch>& launches) {
    const std::vector<std::byte> before(memory_.get(), memory_.get() + used_);
    {
      const Backwards order;
      for (const KernelLaunch& launch : launches) run_once(launch);
    }
    const std::vector<std::byte> backwards(memory_.get(), memory_.get() + used_);
    std::copy(before.begin(), before.end(), memory_.get());
    for (const KernelLaunch& launch : launches) run_once(launch);
    const std::string name = kernel_name(launches.front().kernel);
    ASSERT_EQ(std::memcmp(backwards.data(), memory_.get(), backwards.size()), 0)
        << name << " depends on the order of threads or blocks";
    for (const auto& [first, end] : guards_)
      for (std::size_t i = first; i < end; ++i)
        ASSERT_EQ(memory_.get()[i], guard_value) << name << " wrote outside of an array";
  }

 private:
  static constexpr std::size_t capacity = std::size_t{64} << 20, guard_bytes = 64;
  static constexpr std::byte guard_value{0xa5};

  struct Backwards {
    Backwards() { emulate_backwards(true); }
    ~Backwards() { emulate_backwards(false); }
  };

  void guard(std::size_t bytes) {
    guards_.emplace_back(used_, used_ + bytes);
    std::memset(memory_.get() + used_, static_cast<int>(guard_value), bytes);
    used_ += bytes;
  }
  // Returns the bytes up to the next multiple of 64.
  std::size_t gap() const { return (64 - reinterpret_cast<std::uintptr_t>(memory_.get() + used_) % 64) % 64; }
  std::byte* take(std::int64_t bytes, std::int64_t shift) {
    const auto size = static_cast<std::size_t>(bytes), moved = static_cast<std::size_t>(shift);
    if (guards_.empty()) guard(gap() + guard_bytes);
    if (used_ + moved + size + 3 * guard_bytes > capacity) throw std::length_error("test memory is full");
    guard(moved);
    std::byte* data = memory_.get() + used_;
    std::memset(data, 0xff, size);
    used_ += size;
    guard(gap() + guard_bytes);
    return data;
  }

  std::unique_ptr<std::byte[]> memory_{new std::byte[capacity]};
  std::size_t used_ = 0;
  std::vector<std::pair<std::size_t, std::size_t>> guards_;  // first byte, and the one after the last
};

// The tolerance of a result that is rounded once to its type. `size` is the size of the terms of its sum.
inline double tolerance(Type type, double expected, double size = 1) {
  const double unit = type == Type::fp32 ? 1e-6 : type == Type::bf16 ? 1.0 / 256 : 1.0 / 2048;
  return unit * std::abs(expected) + 3e-6 * size + (type == Type::fp16 ? 6e-8 : 0);
}

inline bool bit(const std::uint8_t* mask, std::int64_t row, std::int64_t channels, std::int64_t channel) {
  return (mask[row * ((channels + 7) / 8) + channel / 8] >> (channel % 8) & 1) != 0;
}
inline void set_bit(std::uint8_t* mask, std::int64_t row, std::int64_t channels, std::int64_t channel, bool value) {
  std::uint8_t& byte = mask[row * ((channels + 7) / 8) + channel / 8];
  const auto one = static_cast<std::uint8_t>(1u << (channel % 8));
  byte = static_cast<std::uint8_t>(value ? byte | one : byte & ~one);
}

}  // namespace ringtrain::cuda
