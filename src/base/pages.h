// Memory that can be page-locked. An allocation begins at a page and fills whole pages, so no two allocations share a
// page. CUDA refuses a copy of memory that is only partly page-locked.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <vector>

#include "base/error.h"

namespace ringtrain {

inline std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
inline std::size_t in_whole_pages(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

template <class T>
struct PageAllocator {
  using value_type = T;
  PageAllocator() = default;
  template <class Other>
  PageAllocator(const PageAllocator<Other>&) {}  // NOLINT: containers convert it
  T* allocate(std::size_t count) {
    void* memory = std::aligned_alloc(page_bytes(), in_whole_pages(count * sizeof(T)));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  bool operator==(const PageAllocator&) const = default;
};

template <class T>
using PageVector = std::vector<T, PageAllocator<T>>;

// Returns all pages of a vector, including the space after its last element.
template <class T>
std::span<const std::byte> pages_of(const PageVector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), in_whole_pages(values.capacity() * sizeof(T))};
}

// Throws Error if the memory does not consist of whole pages.
inline void expect_whole_pages(const void* memory, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(memory) % page_bytes() != 0 || bytes <= 0 ||
      static_cast<std::size_t>(bytes) % page_bytes() != 0)
    throw Error(cat(bytes, " bytes at ", memory, " cannot be page-locked: they are not whole pages of ", page_bytes(),
                    " bytes"),
                "Take a PageVector (base/pages.h) and pin pages_of() it.");
}

}  // namespace ringtrain
