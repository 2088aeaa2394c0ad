// What a rank asks of all ranks, after a step or between passes.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "cluster/communicator.h"

namespace ringtrain {

// Each member is 1 on a rank that asks, and the number of ranks that ask once it is summed. The step's counters include
// the requests and are summed over all ranks, so all ranks act on them at the same step, without a collective operation
// of their own. A signal that arrives during step k is read before step k + 1, and all ranks act on it after step
// k + 1. With servers that have ranks of their own, server 0 sums the requests, and the ranks act on them when they
// meet.
struct MeetingRequests {
  double signal = 0;    // this rank was asked to stop
  double save = 0;      // a checkpoint is due, by rank 0's clock
  double stop = 0;      // the run's time is over, by rank 0's clock
  double fail = 0;      // rank 0 could not write its last checkpoint
  double diverged = 0;  // the loss has been too high for too long, by rank 0's LossWatch

  bool operator==(const MeetingRequests&) const = default;
  MeetingRequests& operator+=(const MeetingRequests& other) {
    signal += other.signal;
    save += other.save;
    stop += other.stop;
    fail += other.fail;
    diverged += other.diverged;
    return *this;
  }
};

// The requests of a step of the trainer. Servers with ranks of their own compare no copies between their meetings, so
// their messages have no `check`.
struct Requests : MeetingRequests {
  double check = 0;  // the next step must compare the copies, by rank 0's clock
};

// Lets the ranks agree, between passes, that one of them wants to leave.
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
