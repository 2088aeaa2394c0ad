// Stores distinct strings and their number of occurrences in one pool. 5 million names take a few hundred MB.
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
  NameTable sorted() const;  // by bytes, which is by code point in UTF-8

 private:
  void grow();
  std::string pool_;
  std::vector<std::uint64_t> offsets_ = {0}, counts_;
  std::vector<std::uint32_t> slots_;  // hash table with open addressing: 1 + index; 0: free
};

}  // namespace ringtrain
