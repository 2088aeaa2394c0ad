#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include "base/error.h"

namespace ringtrain::cpu {

Memory::Memory(std::int64_t bytes, MemoryCount count) : bytes_(bytes), count_(std::move(count)) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw Error(cat("the system refused ", bytes, " bytes of memory"),
                "`ringtrain plan` prints what the run needs; a smaller batch.micro needs less");
  madvise(p, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // may fail: the kernel may have no huge pages
  data_ = static_cast<char*>(p);
  *count_ += bytes_;
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  munmap(data_, static_cast<std::size_t>(bytes_));
  *count_ -= bytes_;
}

}  // namespace ringtrain::cpu
