// Hands out consecutive places of one memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ringtrain {

class MemoryPlaces {
 public:
  explicit MemoryPlaces(std::uint8_t* memory) : memory_(memory) {}  // null: only bytes() counts, and places are empty

  // The caller keeps T's alignment: larger types first, pad() behind them.
  template <class T>
  std::span<T> take(std::int64_t count) {
    const auto values = static_cast<std::size_t>(count);
    const std::size_t begin = used_;
    used_ += values * sizeof(T);
    return memory_ == nullptr ? std::span<T>() : std::span<T>(reinterpret_cast<T*>(memory_ + begin), values);
  }
  void pad(std::size_t alignment) { used_ = (used_ + alignment - 1) / alignment * alignment; }
  std::size_t bytes() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::size_t used_ = 0;
};

}  // namespace ringtrain
