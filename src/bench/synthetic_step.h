// The parts of a training step, as in the trainer, on random input.
#pragma once

#include <memory>
#include <vector>

#include "bench/scaling_model.h"
#include "optim/optimizer.h"
#include "parallel/synchronizer.h"
#include "run/machine.h"
#include "run/plan.h"

namespace ringtrain {

// Passes without communication.
class SyntheticPasses {
 public:
  SyntheticPasses(const RunPlan& plan, Backend& backend);
  void compile(std::int64_t micro_batch);
  void forward_alone();
  void pass(const BackwardHooks& hooks = {});

 protected:
  void forward();

  const RunPlan& plan_;
  Backend& backend_;
  std::unique_ptr<Vector> weights_, gradients_;
  std::unique_ptr<GroupRanks> group_ranks_;  // null: batch norm uses only this rank's part of a shared group
  std::unique_ptr<Program> program_;

 private:
  PassContext context_;
  std::vector<std::uint8_t> inputs_;
  std::vector<std::int32_t> targets_;
  std::vector<float> state_;
};

class SyntheticStep : public SyntheticPasses {
 public:
  SyntheticStep(const RunPlan& plan, const Machine& machine);
  void update();                            // does the work of an update; the learning rate is practically 0
  void step();                              // with the sum of gradients; collective
  std::vector<WatermarkPoint> watermark();  // over one backward pass

 private:
  void start_update();
  std::unique_ptr<Synchronizer> synchronizer_;
  Optimizer optimizer_;
  BackwardHooks overlap_{[this](std::int64_t mark) { synchronizer_->ready(mark); }, [this] { synchronizer_->poll(); }};
};

}  // namespace ringtrain
