// Zeroed memory from the operating system, on huge pages if there are any. Its bytes are counted.
#pragma once

#include <cstdint>
#include <memory>

namespace ringtrain::cpu {

// Counts the bytes of all living buffers. A backend shares it with the buffers that it has made.
using MemoryCount = std::shared_ptr<std::int64_t>;

class Memory {
 public:
  Memory() = default;
  Memory(std::int64_t bytes, MemoryCount count);  // throws Error if the system has too little memory
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
