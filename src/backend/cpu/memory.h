// Zeroed memory from the operating system, on huge pages if there are any. Its bytes are counted.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/error.h"

namespace ringtrain::cpu {

// Counts the bytes of all living buffers. A backend shares it with the buffers that it has made.
using MemoryCount = std::shared_ptr<std::int64_t>;

class Memory {
 public:
  Memory() = default;
  // Throws Error if the system has too little memory.
  Memory(std::int64_t bytes, MemoryCount count) : bytes_(bytes), count_(std::move(count)) {
    if (bytes == 0) return;
    void* p =
        mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      throw Error(cat("the system refused ", bytes, " bytes of memory"),
                  "`ringtrain plan` prints what the run needs; a smaller batch.micro needs less");
    madvise(p, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // may fail: the kernel may have no huge pages
    data_ = static_cast<char*>(p);
    *count_ += bytes_;
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
    if (data_ == nullptr) return;
    munmap(data_, static_cast<std::size_t>(bytes_));
    *count_ -= bytes_;
  }
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
