// The order of a step's passes on a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace ringtrain {

class StageRanks;

// What the trainer does for micro-batch `i` of the step. All are called in increasing order of i.
struct PassCalls {
  std::function<void(std::int64_t i)> input;    // brings its input and targets
  std::function<void(std::int64_t i)> forward;  // after input(i)
  std::function<void(std::int64_t i)> backward;
};

// Where a rank's time went in a step, beside its passes; seconds.
struct PassTimes {
  double bubble = 0;    // it waited for the stage before or after it
  double boundary = 0;  // it handed over what crosses the cuts
};

class PassOrder {
 public:
  virtual ~PassOrder() = default;
  // Every micro-batch of the step forward and backward. Collective over the ranks of a pipeline.
  virtual PassTimes run(std::int64_t micro_batches, const PassCalls& calls) = 0;
  // Forward passes only, one after the other: `pass` runs the program.
  virtual void forward(const std::function<void()>& pass) { pass(); }
};

// One event of a stage: the forward or the backward pass of a micro-batch.
struct StageEvent {
  bool backward = false;
  std::int64_t micro_batch = 0;
  bool operator==(const StageEvent&) const = default;
};

// What stage `stage` of `stages` does with m micro-batches. gpipe (Huang et al. 2019): all forward, then all backward.
// 1f1b (Narayanan et al. 2019, PipeDream-Flush): stages - 1 - stage forward passes first, then one of each in turn.
std::vector<StageEvent> stage_events(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                                     std::int64_t micro_batches);
// Micro-batches that the stage holds at most: m with gpipe, min(stages - stage, m) with 1f1b.
std::int64_t stage_slots(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                         std::int64_t micro_batches);
// The share of a step in which a stage has nothing to do where all stages are equally fast: (K - 1) / (m + K - 1).
double bubble_share(std::int64_t stages, std::int64_t micro_batches);

// `ranks` null: each micro-batch forward and backward in turn. Else the program is a stage's, with `slots` slots.
std::unique_ptr<PassOrder> make_pass_order(StageRanks* ranks, Program& program, const std::string& schedule,
                                           std::int64_t slots);
// Bytes of the buffers that such an order takes where the program computes.
std::int64_t pass_order_bytes(const PartBytes& bytes);

}  // namespace ringtrain
