// Sums whose bits do not depend on how the values are divided between ranks.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace ringtrain {

// Adds values in a binary tree, in their order: ((v0 + v1) + (v2 + v3)) + ... Values that are missing at the end count
// as zeros. If neighbouring ranks have 2^k values each, their totals are nodes of the tree over all values. A sum of
// the totals in a binary tree over the ranks then has the same bits as the sum on one rank.
template <class Value>
class TreeSum {
 public:
  void add(Value value) {
    for (std::int64_t bits = count_++; (bits & 1) != 0; bits >>= 1) {
      value += nodes_.back();
      nodes_.pop_back();
    }
    nodes_.push_back(std::move(value));
  }
  // Returns the sum of all values, or a default value if there are none.
  Value total() const {
    if (nodes_.empty()) return Value{};
    Value sum = nodes_.back();
    for (auto node = nodes_.rbegin() + 1; node != nodes_.rend(); ++node) sum += *node;
    return sum;
  }

 private:
  std::vector<Value> nodes_;  // totals of complete subtrees, the largest first: one for each 1 bit of count_
  std::int64_t count_ = 0;
};

}  // namespace ringtrain
