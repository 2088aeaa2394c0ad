// Copies the state of a trainer into a checkpoint and back, and defines the names of the checkpoint's arrays.
#pragma once

#include <span>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/run_state.h"
#include "cluster/communicator.h"
#include "train/trainer.h"

namespace ringtrain {

// Collective. Adds the trainer's numbers to `state`, on rank 0, and makes a checkpoint of it with all arrays. Gathers
// the carried state, the `stages` of a pipeline, and the optimizer's state if ranks share it. The result is on rank 0;
// it is empty on other ranks. weights/ holds the weights for evaluation. If `evaluated_norms`
// [size - trained of the parameters] is given, weights/ holds these batch norm statistics, and running/ holds the run's
// own statistics, with which training continues.
Checkpoint take_snapshot(Trainer& trainer, const RunPlan& plan, RunState state, Communicator& communicator,
                         std::span<const float> evaluated_norms = {}, StageRanks* stages = nullptr);

// Throws Error if the checkpoint's experiment evaluates recomputed batch norm statistics but the checkpoint has none.
// This happens if a signal left no time to compute them.
void expect_evaluated_norms(const Checkpoint& checkpoint, const std::string& path);

// Returns a checkpoint at step 0 with `weights` [parameters.size()]. The optimizer state is zero, but schedule_free's z
// and the average of the weights are copies of the weights. It records no ranks or threads, so a run that resumes from
// it chooses its micro-batch.
Checkpoint fresh_checkpoint(const RunPlan& plan, std::span<const float> weights);

// Collective. Loads `checkpoint`, which only rank 0 has, into the trainers of all ranks. The trainers then start at
// progress.position. If `checkpoint` is null on rank 0, the weights are initialised from the seed. The loss scale is
// loaded only if the checkpoint was trained with fp16.
void load_trainer(const Checkpoint* checkpoint, Trainer& trainer, const RunPlan& plan, const RunProgress& progress,
                  Communicator& communicator, StageRanks* stages = nullptr);

// Loads only the weights, for evaluation and sampling.
void load_weights(const Checkpoint& checkpoint, const ParameterTable& parameters, std::span<float> flat);

}  // namespace ringtrain
