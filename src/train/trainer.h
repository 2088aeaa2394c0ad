// The training step of one rank.
//
// This folder runs the training. Trainer does one step: it takes micro-batches from the Loader, runs their forward
// and backward passes and adds their gradients (StepPasses), sums the gradients over the ranks (Synchronizer,
// src/parallel) and updates the weights (Optimizer, src/optim). StepNoise measures the gradient noise.
// Steps (steps.h) wraps Trainer, so that a run with parameter servers looks like any other run. Evaluator computes the
// validation loss and accuracy. ReplicaCheck compares the copies of the model on the ranks. Begin reading with
// Trainer::step() in trainer.cpp. The benchmarks (src/bench) measure the same steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "parallel/pipeline.h"
#include "parallel/synchronizer.h"
#include "run/plan.h"
#include "run/reports.h"
#include "run/split.h"
#include "train/replica_check.h"
#include "train/step_noise.h"
#include "train/step_passes.h"

namespace ringtrain {

// The numbers that a trainer keeps from step to step. Its vectors are not among them. Checkpoints store all of them.
// The defaults are those of a run that begins.
struct TrainerState : NoiseState {
  double loss_scale = 0;  // of fp16; 0: loss_scale.initial
  std::int64_t loss_scale_steps = 0;
  Optimizer::Applied applied;
  std::int64_t batch = 0;  // the batch that has grown with the noise scale; 0: the first batch, or one of the schedule
};

// The counters of a step. Each rank counts its own part.
struct StepCounters {
  double loss = 0, correct = 0;  // as in LossSums
  Requests requests = {};
  StageWaits stage_waits = {};             // pipeline only
  SmallBatchNorms::Sums small_norms = {};  // zeros: not measured
  std::vector<double> of_copies = {};      // of ReplicaCheck; empty: this step does not compare the copies

  // Replaces each counter by its sum over the ranks. Ends the step's sums (Synchronizer::agree()).
  void sum_over_ranks(Synchronizer& ranks);
};

class Trainer {
 public:
  // Allocates the memory. Weights and optimizer state are zero until they are loaded. Call load() after loading them.
  // `communicator` has all ranks. `stages` are the stages of a pipeline, if the plan has one.
  Trainer(const RunPlan& plan, Backend& backend, Communicator& communicator, Watchdog& watchdog, BatchInput& input,
          std::optional<UpdateShare> share = std::nullopt, StageRanks* stages = nullptr);

  // Does one update. Collective. Throws Diverged if the loss or the gradient is not finite (fp16: if the loss is not
  // finite, or if no loss scale makes the gradient finite). No weight has changed then. Throws Error if this step
  // compares the copies of the model and they differ.
  StepReport step(const Requests& requests);

  // compute() and apply() are the two halves of a step whose gradient and update are made by different ranks. compute()
  // writes the mean gradient of this rank's rows to gradients(), for the step that begins at `position`. The mean is
  // over this rank's targets. Returns the sums of the passes. Their `targets` are the number of this rank's targets, at
  // least 1.
  LossSums compute(const Position& position, StepTimes& times);
  // Does one update with the gradient in gradients(). `sums` are those of all its passes. The learning rate is the rate
  // of the current position times `rate_factor`. Throws the same errors as step().
  StepReport apply(const LossSums& sums, double rate_factor);
  void stand_at(const Position& position) { position_ = position; }  // called if other ranks made the updates

  const Position& position() const { return position_; }
  std::int64_t batch() const { return course_.batch_at(position_); }  // batch of the next step
  // fresh_state() returns the state of a run that begins. It names the groups of noise of this trainer.
  TrainerState fresh_state() const;
  void save(TrainerState& state) const;
  // Call this before the first step. Training continues at `position`, with `state` and the current contents of
  // weights(), optimizer() and passes().carried_state().
  void load(const TrainerState& state, const Position& position);
  // Does what load() does, but keeps the numbers of the trainer. `batch` is TrainerState::batch.
  void start_at(const Position& position, std::int64_t batch = 0);

  Backend& backend() { return backend_; }
  // Returns the part of the model that this rank holds in weights(), the optimizer's state and the carried state.
  const ModelPart& part() const { return part_; }
  StepPasses& passes() { return passes_; }
  Vector& weights() { return *weights_; }
  Vector& gradients() { return *gradients_; }
  // Returns the weights that are evaluated and exported; see Optimizer::evaluated().
  Vector& evaluated_weights() { return optimizer_.evaluated(*weights_); }
  Optimizer& optimizer() { return optimizer_; }
  const StepNoise& noise() const { return noise_; }
  // Returns what sums the gradients. Benchmarks replace it for some steps. The optimizer still needs the first one.
  std::unique_ptr<Synchronizer>& synchronizer() { return synchronizer_; }
  // Returns the named tensors that other ranks may hold with the same bits.
  std::vector<ReplicatedTensor> replicated() {
    return replicated_tensors(part_.parameters, *weights_, optimizer_, plan_.experiment);
  }
  // Call this before the first step. Ranks then compare their copies (communication.check_every_steps). See
  // ReplicaCheck for `known_good`.
  void compare_copies(std::function<KnownCheckpoint()> known_good);
  // compares_copies() returns whether ranks compare their copies. comparison_seconds() returns the seconds that the
  // host spent on the newest checksum.
  bool compares_copies() const { return replicas_ != nullptr; }
  double comparison_seconds() const { return replicas_ ? replicas_->seconds() : 0; }
  // Throws Error if the copies differ now. Collective.
  void check_copies();

 private:
  // The parts of step(), in the order in which it calls them.
  Position next_position() const { return course_.after(position_); }
  PassStep step_at(const Position& position, bool is_alone = false) const;
  bool compares_now() const;
  bool measures_noise() const { return noise_.measures(course_.samples_at(position_), next_position()); }
  void sleep_if_slow() const;
  bool reads_on(const Position& next) const;
  void queue_update(StepReport& report, double rate_factor);
  bool may_run_ahead() const;
  void note_stage_waits(const StageWaits& waits, double step_begin, StepTimes& times) const;
  StepCounters own_counters(const LossSums& sums, const Requests& requests, const StageWaits& waits, bool compares);
  void finish_update(StepReport& report, const StepCounters& counters, std::int64_t targets);
  void share_weights();
  void flip_bit();
  void follow_noise(const StepReport& report);

  const RunPlan& plan_;
  ModelPart part_;
  Backend& backend_;
  Watchdog& watchdog_;
  Communicator& communicator_;
  StageRanks* stages_;
  std::unique_ptr<Vector> weights_, gradients_;
  std::unique_ptr<Synchronizer> synchronizer_;
  Optimizer optimizer_;
  LossScale loss_scale_;
  StepNoise noise_;
  StepPasses passes_;
  std::unique_ptr<ReplicaCheck> replicas_;  // null: nothing is compared
  bool compares_next_ = false;              // whether rank 0's clock asked for a comparison
  BatchCourse course_;
  Position position_;
};

}  // namespace ringtrain
