// Copies the state of a trainer into a checkpoint and back, and defines the names in the checkpoint.
#pragma once

#include <limits>

#include "checkpoint/checkpoint.h"
#include "cluster/communicator.h"
#include "train/trainer.h"

namespace ringtrain {

// The state of a run, apart from weights and optimizer. It is stored in the checkpoint. It is the same on all ranks,
// except that `elapsed_seconds` follows each rank's clock and only rank 0 counts `dropped`.
struct RunProgress {
  Position position;
  Position before;             // where the last update began; its `step` and `samples` are not stored
  double elapsed_seconds = 0;  // time spent on training, over all parts of the run
  double best_loss = 0;        // validation loss; has_best says whether there is one
  std::int64_t best_step = 0;
  bool has_best = false;
  std::int64_t evaluated_step = 0;   // step of the last evaluation
  double scale_invariant_steps = 0;  // AdaScale's steps
  std::int64_t dropped = 0;          // backup workers: the gradients that came too late for their step
  std::int64_t norms_step = -1;      // step of the recomputed batch norm statistics in the newest checkpoint; -1: none
  // The values of the last evaluation. NaN: there was none.
  double evaluated_loss = std::numeric_limits<double>::quiet_NaN();
  double evaluated_accuracy = std::numeric_limits<double>::quiet_NaN();
};

// Collective. It gathers the carried state, the `stages` of a pipeline, and the optimizer's state if ranks share it.
// The result is on rank 0; it is empty on other ranks. The caller adds what a trainer does not know, such as the
// machine and the threads. weights/ holds the weights for evaluation. If `evaluated_norms` [size - trained of the
// parameters] is given, weights/ holds these batch norm statistics, and running/ holds the run's own statistics, with
// which training continues.
Checkpoint take_snapshot(Trainer& trainer, const RunPlan& plan, const RunProgress& progress, Communicator& communicator,
                         std::span<const float> evaluated_norms = {}, StageRanks* stages = nullptr);

// Throws Error if the checkpoint's experiment evaluates recomputed batch norm statistics but the checkpoint has none.
// This happens if a signal left no time to compute them.
void expect_evaluated_norms(const Checkpoint& checkpoint, const std::string& path);

// Returns a checkpoint at step 0 with `weights` [parameters.size()]. The optimizer state is zero, but schedule_free's z
// and the average of the weights are copies of the weights. It records no ranks or threads, so a run that resumes from
// it chooses its micro-batch.
Checkpoint fresh_checkpoint(const RunPlan& plan, std::span<const float> weights);

// Returns the meaning of the rows of the first and last layer, as JSON: "vocabulary" for text, "class_ids" for images.
// A symbol that is a byte but not valid UTF-8 (ringtrain-data text --alphabet bytes) is written as its number: ["a",
// 195, 169].
std::map<std::string, std::string> symbols_of(const RunPlan& plan);
// Returns the symbol of each id, read from the checkpoint of a text model.
std::vector<std::string> vocabulary_of(const Checkpoint& checkpoint);

// Collective. Loads `checkpoint`, which only rank 0 has, into the trainers of all ranks. The trainers then start at
// progress.position. If `checkpoint` is null on rank 0, the weights are initialised from the seed. The loss scale is
// loaded only if the checkpoint was trained with fp16.
void load_trainer(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, const RunProgress& progress,
                  Communicator& communicator, StageRanks* stages = nullptr);

// Returns whether the ranks compared their copies of the model before the checkpoint was written, and found no
// difference. Returns false if a run on one rank wrote the checkpoint.
bool was_compared(const Checkpoint& checkpoint);

// Returns the samples of a device pass, which a resumed run keeps. 0: the checkpoint was not written by a run.
std::int64_t recorded_micro_batch(const Checkpoint& checkpoint);

RunProgress progress_of(const Checkpoint& checkpoint);

// Loads only the weights, for evaluation and sampling.
void load_weights(const Checkpoint& checkpoint, const ParameterTable& parameters, std::span<float> flat);

}  // namespace ringtrain
