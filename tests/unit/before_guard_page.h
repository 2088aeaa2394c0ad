// Holds a copy of some bytes. A page that may not be read begins directly after the copy. Code that reads past the end
// of the copy therefore stops with a segmentation fault.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace ringtrain {

class BeforeGuardPage {
 public:
  explicit BeforeGuardPage(std::span<const std::uint8_t> bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t used = (bytes.size() + page - 1) / page * page;
    size_ = used + page;
    memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::runtime_error("no memory for a guard page");
    auto* const guard = static_cast<std::uint8_t*>(memory_) + used;
    bytes_ = {guard - bytes.size(), bytes.size()};
    std::copy(bytes.begin(), bytes.end(), guard - bytes.size());
    if (::mprotect(guard, page, PROT_NONE) != 0) throw std::runtime_error("a guard page cannot be protected");
  }
  BeforeGuardPage(const BeforeGuardPage&) = delete;
  BeforeGuardPage& operator=(const BeforeGuardPage&) = delete;
  ~BeforeGuardPage() { ::munmap(memory_, size_); }

  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace ringtrain
