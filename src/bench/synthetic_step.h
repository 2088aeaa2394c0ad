// Passes and steps of the trainer on random input, for benchmarks. The updates practically do not change the weights.
#pragma once

#include <memory>
#include <vector>

#include "base/pages.h"
#include "bench/benchmarks.h"
#include "bench/scaling_model.h"
#include "train/trainer.h"

namespace ringtrain {

// Gives the same random micro-batch again and again.
class RandomInput : public BatchInput {
 public:
  RandomInput(const RunPlan& plan, std::int64_t micro_batch);
  void seek(std::int64_t, std::int64_t, std::int64_t) override { batch_.micro_step = -1; }
  const MicroBatch& next() override;
  std::vector<std::span<const std::byte>> ring() const override { return {pages_of(inputs_), pages_of(targets_)}; }

 private:
  std::int64_t micro_batch_, accumulation_;
  PageVector<std::uint8_t> inputs_;
  PageVector<std::int32_t> targets_;
  MicroBatch batch_;
};

// Passes without sums and updates, of any size, on random input. They need neither other ranks nor a data set. The
// trainer's passes (train/step_passes.h) have the size of the plan and are a part of its step; StillSteps drives those.
class SyntheticPasses {
 public:
  // `communicator` has the ranks that share batch norm's workers. null: batch norm uses only this rank's part of them.
  SyntheticPasses(const RunPlan& plan, Backend& backend, std::int64_t micro_batch,
                  Communicator* communicator = nullptr);
  void forward();
  void pass(const BackwardHooks& hooks = {});
  std::vector<WatermarkPoint> watermark();  // over one backward pass

 private:
  RandomInput input_;
  std::unique_ptr<Vector> weights_, gradients_;
  std::unique_ptr<NormTeam> norm_team_;
  std::unique_ptr<Program> program_;
  PassContext context_;
  std::vector<float> state_;
};

// The trainer's own steps with a constant batch and a learning rate that is practically 0. They measure no noise.
class StillSteps {
 public:
  // Collective. `input` must outlive this object.
  StillSteps(const BenchContext& context, const RunPlan& plan, BatchInput& input);
  void restart() { trainer_.start_at({}, plan_.batch.global); }  // at the beginning of `input`
  void step() { trainer_.step({}); }                             // collective
  // The update alone. Collective for Muon, whose matrices the ranks share, and for sharded state.
  void update() { trainer_.apply({.targets = 1}, 1); }
  Trainer& trainer() { return trainer_; }

 private:
  const RunPlan plan_;
  Watchdog watchdog_;
  Trainer trainer_;
};

}  // namespace ringtrain
