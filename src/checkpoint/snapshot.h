// Between a trainer and a checkpoint: what is stored, under which name, and how it comes back.
#pragma once

#include "checkpoint/checkpoint.h"
#include "cluster/communicator.h"
#include "train/trainer.h"

namespace ringtrain {

// What a run knows beside weights and states; kept in the checkpoint, the same on all ranks.
struct RunProgress {
  Position position;
  Position before;             // the last update; step and samples are not kept
  double elapsed_seconds = 0;  // of training, over all parts of the run
  double best_loss = 0;        // validation loss; has_best says whether there is one
  std::int64_t best_step = 0;
  bool has_best = false;
  std::int64_t evaluated_step = 0;   // of the last evaluation
  double scale_invariant_steps = 0;  // AdaScale's
  std::int64_t norms_step = -1;      // of batch norm's recomputed statistics in the newest checkpoint; -1: it has none
};

// Collective (gathers the carried state, the `stages` of a pipeline, and the optimizer's state where ranks share it). The
// result is whole on rank 0 and empty elsewhere. weights/ is what whoever evaluates it takes: with `evaluated_norms`
// [size - trained of the parameters], batch norm's statistics are those, and the run's own, from which it goes on, lie
// in running/.
Checkpoint take_snapshot(Trainer& trainer, const RunPlan& plan, const RunProgress& progress, Communicator& communicator,
                         std::span<const float> evaluated_norms = {}, StageRanks* stages = nullptr);

// Throws Error when its experiment evaluates recomputed statistics of batch norm and the checkpoint has none: a signal
// left no time for them.
void expect_evaluated_norms(const Checkpoint& checkpoint, const std::string& path);

// A checkpoint at step 0 with these weights [parameters.size()] and zero optimizer state; no number of ranks or threads
// is in it, so that whoever resumes from it chooses a micro-batch anew.
Checkpoint fresh_checkpoint(const RunPlan& plan, std::span<const float> weights);

// What the rows of the first and last layer stand for, as JSON: "vocabulary" of text, "class_ids" of images. A symbol
// that is a byte and no UTF-8 (ringtrain-data text --alphabet bytes) is its number: ["a", 195, 169].
std::map<std::string, std::string> symbols_of(const RunPlan& plan);
// The symbol of each id, from the checkpoint of a text model.
std::vector<std::string> vocabulary_of(const Checkpoint& checkpoint);

// Collective: from `checkpoint` on rank 0 (null: fresh weights from the seed) to all ranks; starts the trainer there.
// The loss scale goes on only where the checkpoint was trained with fp16, too.
void load_trainer(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, const RunProgress& progress,
                  Communicator& communicator, StageRanks* stages = nullptr);

// Samples of a device pass, which a run keeps; 0: no run has written the checkpoint.
std::int64_t recorded_micro_batch(const Checkpoint& checkpoint);

// Checkpoints of earlier versions do not say where they stand in their epoch, or where their last update began;
// complete() does, from the plan. It also begins a new epoch where this plan's batch is too large for what is left.
RunProgress progress_of(const Checkpoint& checkpoint);
void complete(RunProgress& progress, const RunPlan& plan);

// Only the weights, for evaluation and sampling.
void load_weights(const Checkpoint& checkpoint, const ParameterTable& parameters, std::span<float> flat);

}  // namespace ringtrain
