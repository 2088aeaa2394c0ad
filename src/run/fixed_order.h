// The fixed order of sums (communication.order: fixed). Gradients are added in one binary tree over the passes of all
// ranks. The bits of a run then do not depend on the number of ranks. train/step_passes.h adds the gradients.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "config/experiment.h"
#include "run/plan.h"

namespace ringtrain {

inline bool has_fixed_order(const Experiment& experiment) {
  return experiment.communication.order == "fixed";
}
// Throws Error if the passes of the ranks do not form a binary tree.
void check_fixed_order(const RunPlan& plan);

// Returns the number of gradient vectors that a rank keeps until their neighbours in the tree are ready. It is the
// binary logarithm of the rank's passes in a step. 0: no fixed order.
std::int64_t waiting_nodes(const RunPlan& plan);

// Returns the powers of two up to `most` as a text: "1, 2, 4, 8".
std::string powers_of_two(std::int64_t most);

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
