// Zeroed memory from the operating system, on huge pages if there are any. Its bytes are counted.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <functional>
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
  Memory(std::int64_t bytes, MemoryCount count) {
    if (bytes == 0) return;
    const auto size = static_cast<std::size_t>(bytes);
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      throw Error(cat("the system refused ", bytes, " bytes of memory"),
                  "`ringtrain plan` prints what the run needs; a smaller batch.micro needs less");
    madvise(p, size, MADV_HUGEPAGE);  // may fail: the kernel may have no huge pages
    *count += bytes;
    data_ = {static_cast<char*>(p), [size, bytes, count = std::move(count)](char* data) {
               munmap(data, size);
               *count -= bytes;
             }};
  }
  char* data() const { return data_.get(); }

 private:
  std::unique_ptr<char, std::function<void(char*)>> data_;
};

}  // namespace ringtrain::cpu
