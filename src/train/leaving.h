// Lets the ranks agree, between passes, that one of them wants to leave.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "cluster/communicator.h"

namespace ringtrain {

// The ranks agree by a sum over all ranks. The sum is started before one pass, and its result is used before the next
// pass. No rank thus waits for the sum, and all ranks leave at the same pass. All ranks must call agreed() equally
// often.
class Leaving {
 public:
  // Returns whether this rank wants to leave. If the function is empty (on all ranks), no rank is asked.
  using Wish = std::function<bool()>;
  Leaving(Communicator& communicator, const Wish& wish) : communicator_(communicator), wish_(wish) {}

  // Call this before each pass. Returns whether a rank wanted to leave before the previous pass.
  bool agreed() {
    if (!wish_) return false;
    finish();
    if (leavers_ > 0) return true;
    leavers_ = wish_() ? 1 : 0;
    agreement_ = communicator_.start_sum(std::span<double>(&leavers_, 1));
    return false;
  }
  // Call this after the last pass.
  void finish() {
    if (agreement_) agreement_->finish();
    agreement_.reset();
  }

 private:
  Communicator& communicator_;
  const Wish& wish_;
  double leavers_ = 0;
  std::unique_ptr<Pending> agreement_;
};

}  // namespace ringtrain
