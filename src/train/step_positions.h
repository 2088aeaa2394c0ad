// The positions at which the run's coming steps begin. Ranks that do not do the steps in order need them.
#pragma once

#include <cstdint>
#include <deque>

#include "config/batch_course.h"

namespace ringtrain {

class StepPositions {
 public:
  StepPositions(const BatchCourse& course, const Position& first) : course_(course), known_{course.settled(first)} {}
  // Returns the position at which step `step` begins, after `step` updates. `step` must not be before the first
  // position that is kept.
  const Position& at(std::int64_t step) {
    while (known_.back().step < step) known_.push_back(course_.after(known_.back()));
    return known_[static_cast<std::size_t>(step - known_.front().step)];
  }
  void forget_before(std::int64_t step) {
    at(step);
    while (known_.front().step < step) known_.pop_front();
  }

 private:
  BatchCourse course_;
  std::deque<Position> known_;
};

}  // namespace ringtrain
