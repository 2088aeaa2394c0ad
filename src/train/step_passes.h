// The passes of a rank's steps: the input of each micro-batch, its forward pass and its backward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/pages.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "parallel/pass_order.h"
#include "parallel/stage_ranks.h"
#include "parallel/synchronizer.h"
#include "run/plan.h"
#include "run/split.h"
#include "run/step_times.h"

namespace ringtrain {

// Tells the watchdog the current phase of the step and measures the time of each phase.
class StepClock {
 public:
  StepClock(Watchdog& watchdog, std::int64_t step, StepTimes& times)
      : watchdog_(watchdog), step_(step), times_(times) {}
  void enter(Phase phase) { watchdog_.enter(step_, phase); }
  // Does the action. Its seconds count as those of the phase, which is one of the five below.
  template <class Action>
  auto time(Phase phase, const Action& action) {
    struct Stop {
      double& seconds;
      double begin = now_seconds();
      ~Stop() { seconds += now_seconds() - begin; }
    };
    enter(phase);
    const Stop stop{seconds_of(phase)};
    return action();
  }

 private:
  double& seconds_of(Phase phase) {
    return phase == Phase::input      ? times_.input
           : phase == Phase::forward  ? times_.forward
           : phase == Phase::backward ? times_.backward
           : phase == Phase::update   ? times_.update
                                      : times_.communication;
  }

  Watchdog& watchdog_;
  std::int64_t step_;
  StepTimes& times_;
};

// The step to which a pass belongs.
struct PassStep {
  Position position;  // at which the step begins
  BatchPlan batch;
  std::int64_t samples = 0;
  float loss_scale = 1;
  bool is_alone = false;  // whether the mean gradient is over this rank's targets only
};

class StepPasses {
 public:
  // Allocates the memory of the program of `part`. `stages` are the stages of a pipeline (null: none).
  StepPasses(const RunPlan& plan, const ModelPart& part, Backend& backend, Communicator& communicator,
             StageRanks* stages, BatchInput& input);

  Program& program() { return *program_; }
  const Program& program() const { return *program_; }
  // Returns the hidden state of running text after the last step: [rows of this rank, layers of its part, (h, c),
  // hidden].
  std::span<float> carried_state() { return carried_state_; }
  // The next step begins at `position`. `batch` is as in BatchInput::seek().
  void seek(const Position& position, std::int64_t batch);

  // Does the forward and backward passes of a step. `sums` tells the number of targets where the ranks' numbers differ.
  // `backward` does the backward pass of a micro-step. If `reads_on` is true, the first micro-batch of the next step is
  // read early.
  void run(const PassStep& step, bool reads_on, Synchronizer& sums, StepClock& clock,
           const std::function<void(std::int64_t micro_step)>& backward);
  // Does the first forward pass of the next step. The next run() goes on with its backward pass. is_staged() returns
  // whether the input of that pass has been read.
  void run_ahead(const PassStep& next, Synchronizer& sums, StepClock& clock);
  bool is_staged() const { return staged_.has_value(); }

  std::int64_t targets() const { return targets_; }    // of the global batch of the newest pass, at least 1
  PassTimes times() const { return order_->times(); }  // see PassOrder::times()

 private:
  void stage_next();
  void get_input(const PassStep& step, Synchronizer& sums, StepClock& clock);
  void forward(const PassStep& step, StepClock& clock);
  std::int64_t targets_of(const MicroBatch& first, const PassStep& step, Synchronizer& sums) const;
  PassContext context(const MicroBatch& batch, const PassStep& step);

  const RunPlan& plan_;
  const ModelPart& part_;
  BatchInput& input_;
  std::unique_ptr<GroupRanks> group_ranks_;  // the ranks that share batch norm's workers; null: not shared
  std::unique_ptr<Program> program_;
  std::unique_ptr<PassOrder> order_;
  PageVector<float> carried_state_;
  Pinned pinned_;
  std::uint64_t dropout_key_;
  std::optional<MicroBatch> staged_;  // the input of the program's next forward pass
  std::int64_t staged_of_step_ = 0;   // micro-batches of this step that have been staged
  bool is_ahead_ = false;             // whether the first pass of the next step has begun
  std::int64_t targets_ = 0;
};

}  // namespace ringtrain
