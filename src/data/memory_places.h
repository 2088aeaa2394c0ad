// Divides a block of memory into consecutive arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ringtrain {

class MemoryPlaces {
 public:
  explicit MemoryPlaces(std::uint8_t* memory) : memory_(memory) {}  // null: only bytes() counts; arrays are empty

  // The caller keeps the alignment of T: larger types come first, and pad() comes after them.
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
