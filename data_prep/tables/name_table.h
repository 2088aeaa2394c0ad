// Distinct strings with their number of occurrences, in one pool: 5 million names in a few hundred MB.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

class NameTable {
 public:
  void add(std::string_view name, std::uint64_t count = 1);
  std::size_t size() const { return counts_.size(); }
  std::string_view name(std::size_t i) const {
    return std::string_view(pool_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  std::uint64_t count(std::size_t i) const { return counts_[i]; }
  NameTable sorted() const;  // by bytes, which for UTF-8 is by code point: independent of the input's order

 private:
  void grow();
  std::string pool_;
  std::vector<std::uint64_t> offsets_ = {0}, counts_;
  std::vector<std::uint32_t> slots_;  // open addressing: 1 + index, 0 when free
};

}  // namespace ringtrain
