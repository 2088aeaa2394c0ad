// Zeroed memory straight from the operating system, on huge pages where they are to be had, counted.
#pragma once

#include <cstdint>
#include <memory>

namespace ringtrain::cpu {

// Bytes that live buffers hold; shared by a backend and all it has given out.
using MemoryCount = std::shared_ptr<std::int64_t>;

class Memory {
 public:
  Memory() = default;
  Memory(std::int64_t bytes, MemoryCount count);  // throws Error when the system has not that much
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory();
  char* data() const { return data_; }

 private:
  void swap(Memory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(count_, other.count_);
  }
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
  MemoryCount count_;
};

}  // namespace ringtrain::cpu
