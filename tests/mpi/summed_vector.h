// A vector for the tests of sums. It lies in memory that the communicator gave, or in other memory.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "cluster/communicator.h"

namespace ringtrain {

// With `allocated`, the communicator gives the memory, and the ranks of a node read the vector in place. Then the
// constructor is collective.
class SummedVector {
 public:
  SummedVector(Communicator& communicator, const std::vector<float>& values, bool allocated)
      : communicator_(communicator), own_(values) {
    if (allocated) memory_ = static_cast<float*>(communicator.allocate(std::ssize(values) * 4 + 1));
    std::ranges::copy(values, span().begin());
  }
  ~SummedVector() {
    if (memory_ != nullptr) communicator_.release(memory_);
  }
  SummedVector(const SummedVector&) = delete;
  SummedVector& operator=(const SummedVector&) = delete;

  std::span<float> span() { return {memory_ != nullptr ? memory_ : own_.data(), own_.size()}; }
  std::vector<float> values() { return {span().begin(), span().end()}; }

 private:
  Communicator& communicator_;
  std::vector<float> own_;
  float* memory_ = nullptr;
};

inline std::string place_name(bool allocated) {
  return allocated ? ", in memory of the communicator" : ", in other memory";
}

}  // namespace ringtrain
