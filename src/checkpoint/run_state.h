// What a checkpoint holds. The list of its numbers is in run_state.cpp.
//
// A checkpoint holds all that a run needs to continue with the same bits:
//   arrays         weights, optimizer state, hidden state of running text (snapshot.h; running/ if needed)
//   RunProgress    how far the run is (run/run_end.h)
//   TrainerState   the numbers that its trainer keeps from step to step (train/trainer.h)
//   RunFacts       where and how it ran
//   kept steps     the checkpoints that are never deleted
//   BranchPoint    in a branch only: where it left its source (run/plan.h)
//   the plan       the experiment, the model's tensors, and the meaning of its symbols or classes
// A run's folder has the rest. `choices` has what only GPUs need for the same bits (run/machine.h). run.json has the
// cost of a stop, and metrics.jsonl has the losses that LossWatch reads again. Neither changes a weight.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "cluster/communicator.h"
#include "run/plan.h"
#include "run/run_end.h"
#include "train/trainer.h"

namespace ringtrain {

// Where and how a run computed its last steps. Zeros: the checkpoint was not written by a run.
struct RunFacts {
  std::int64_t threads = 0;
  bool compared = false;         // whether the ranks compared their copies of the model before the checkpoint
  std::string machine, fusions;  // Machine::identity() and Machine::fusion_choices()
  std::int64_t ranks = 0, micro_batch = 0;
};

struct RunState {
  RunProgress progress = {};
  RunFacts facts = {};
  std::vector<std::int64_t> kept_steps = {};  // the steps of the kept checkpoints (checkpoint.keep_at), with its own
  TrainerState trainer = {};
};

// Returns a checkpoint without arrays. Its step is that of the progress.
Checkpoint make_checkpoint(const RunPlan& plan, RunState state);

// These return what make_checkpoint() has stored. They throw Error if a value is missing or has another type.
RunProgress progress_of(const Checkpoint& checkpoint);
// Returns the epochs of the checkpoint's run before a position, with a fraction within an epoch.
double epochs_at(const Checkpoint& checkpoint, const Position& position);
RunFacts facts_of(const Checkpoint& checkpoint);
std::vector<std::int64_t> kept_steps(const Checkpoint& checkpoint);
std::optional<BranchPoint> stored_branch_point(const Checkpoint& checkpoint);  // nothing: not of a branch

// Reads the trainer's state, with those groups of noise that `state` already names. The loss scale is read only if the
// checkpoint was trained with fp16. Throws Error if the batch has grown beyond the batches of the plan.
void read_state(const Checkpoint& checkpoint, const RunPlan& plan, TrainerState& state);
// Gives all ranks the state of rank 0. All ranks must name the same groups of noise. Collective.
void broadcast_state(TrainerState& state, const Experiment& experiment, Communicator& communicator);

// Returns the meaning of the rows of the first and last layer, as JSON: "vocabulary" for text, "class_ids" for images.
// A symbol that is a byte but not valid UTF-8 (ringtrain-data text --alphabet bytes) is written as its number: ["a",
// 195, 169].
std::map<std::string, std::string> symbols_of(const RunPlan& plan);
// Returns the symbol of each id, read from the checkpoint of a text model.
std::vector<std::string> vocabulary_of(const Checkpoint& checkpoint);

}  // namespace ringtrain
