// The passes of a rank's steps: the input of each micro-batch, its forward pass and its backward pass, and the sum of
// the gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/pages.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "parallel/pipeline.h"
#include "parallel/rank_status.h"
#include "parallel/synchronizer.h"
#include "run/fixed_order.h"
#include "run/plan.h"
#include "run/split.h"
#include "train/step_noise.h"

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

// Adds the gradients and losses of a rank's passes, which gives this rank's part of a step.
//
// Normally every pass adds to one gradient vector. In a fixed order (communication.order: fixed) the passes are the
// leaves of a binary tree. The sum then has the same bits for any number of ranks that share the tree:
//
//   pass     0   1   2   3   4   5   6   7
//            '-+-'   '-+-'   '-+-'   '-+-'     level 1
//              '---+---'       '---+---'       level 2
//                  '-------+-------'           level 3
//
// A rank has 2^k neighbouring passes of the global batch. Their sum is one node of the tree. halving_sum()
// (cluster/sum_algorithms.h) adds the nodes of the ranks in the same tree. Each level has one vector, for a node that
// waits for its neighbour. After the last pass, the nodes of the rank are added bucket by bucket. Each bucket is added
// just before it is summed over the ranks.
class SumOfPasses {
 public:
  // `gradients` holds the gradients of this rank's parameters and the other values that are summed with them.
  // `small_norms` measures the norms of the small batches. null: no step measures them.
  SumOfPasses(const RunPlan& plan, Backend& backend, Vector& gradients, SmallBatchNorms* small_norms);

  // Begins a step of batch.accumulation passes. If `measures` is true, the norms of the step's small batches are
  // measured. Returns a function that must be called for each bucket of gradients before the bucket is summed over the
  // ranks. The function is empty if there is nothing to do for a bucket.
  BeforeBucket begin(const BatchPlan& batch, bool measures);
  // Runs the backward pass of pass `pass` of the step, after its forward pass. `hooks` launch buckets during the last
  // backward pass.
  void backward(Program& program, std::int64_t pass, const BackwardHooks& hooks);
  // Returns the sums over all passes of the step.
  LossSums take_sums(Program& program);

 private:
  void keep_node(std::int64_t pass);
  void complete(std::int64_t begin, std::uintptr_t stream);
  void fold(std::size_t from_level, std::size_t to_level, ElementRange range, std::uintptr_t stream);

  Backend& backend_;
  Vector& gradients_;
  bool fixed_order_;
  std::int64_t bucket_elements_;
  std::size_t small_level_ = 0;                  // the level of the nodes that are small batches
  std::vector<std::unique_ptr<Vector>> levels_;  // the waiting node of each level; fixed order only
  TreeSum<LossSums> losses_;                     // losses of the passes before the last one; fixed order only
  SmallBatchNorms* small_norms_;
  BatchPlan batch_;
  bool measures_ = false;
};

class StepPasses {
 public:
  // Allocates the memory of the program of `part`. `stages` are the stages of a pipeline (null: none). The ring of
  // `input` is pinned. `gradients` and `small_norms` are as in SumOfPasses.
  StepPasses(const RunPlan& plan, const ModelPart& part, Backend& backend, Communicator& communicator,
             StageRanks* stages, BatchInput& input, Vector& gradients, SmallBatchNorms* small_norms);

  Program& program() { return *program_; }
  // Returns the hidden state of running text after the last step: [rows of this rank, layers of its part, (h, c),
  // hidden].
  std::span<float> carried_state() { return carried_state_; }
  // Takes another input. The caller pins its ring, and calls seek().
  void read_from(BatchInput& input) { input_ = &input; }
  // The next step begins at `position`. `batch` is as in BatchInput::seek().
  void seek(const Position& position, std::int64_t batch);

  // Begins a step. If `measures` is true, the norms of its small batches are measured. See SumOfPasses::begin().
  BeforeBucket begin(const PassStep& step, bool measures) { return sum_.begin(step.batch, measures); }
  // Does the forward and backward passes of the step. `sums` tells the number of targets where the ranks' numbers
  // differ. `hooks` are for the last backward pass. If `reads_on` is true, the first micro-batch of the next step is
  // read early.
  void run(const PassStep& step, bool reads_on, const BackwardHooks& hooks, Synchronizer& sums, StepClock& clock);
  // Does the first forward pass of the next step. The next run() goes on with its backward pass. is_staged() returns
  // whether the input of that pass has been read.
  void run_ahead(const PassStep& next, Synchronizer& sums, StepClock& clock);
  bool is_staged() const { return staged_.has_value(); }
  LossSums take_sums() { return sum_.take_sums(*program_); }  // over all passes of the step

  std::int64_t targets() const { return targets_; }  // of the global batch of the newest pass, at least 1
  StageWaits stage_waits() const { return order_->stage_waits(); }  // see PassOrder::stage_waits()

 private:
  void stage_next();
  void get_input(const PassStep& step, Synchronizer& sums, StepClock& clock);
  void forward(const PassStep& step, StepClock& clock);
  std::int64_t targets_of(const MicroBatch& first, const PassStep& step, Synchronizer& sums) const;
  PassContext context(const MicroBatch& batch, const PassStep& step);

  const RunPlan& plan_;
  const ModelPart& part_;
  BatchInput* input_;
  std::unique_ptr<NormTeam> norm_team_;  // the ranks that share batch norm's workers; null: not shared
  std::unique_ptr<Program> program_;
  std::unique_ptr<PassOrder> order_;
  SumOfPasses sum_;
  PageVector<float> carried_state_;
  Pinned pinned_;
  std::uint64_t dropout_key_;
  std::optional<MicroBatch> staged_;  // the input of the program's next forward pass
  std::int64_t staged_of_step_ = 0;   // micro-batches of this step that have been staged
  bool is_ahead_ = false;             // whether the first pass of the next step has begun
  std::int64_t targets_ = 0;
};

}  // namespace ringtrain
