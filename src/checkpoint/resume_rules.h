// What may change between a checkpoint and the run that goes on from it, and what the user is told about it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "run/plan.h"

namespace ringtrain {

// The experiment that wrote the checkpoint at `path`. Throws Error where this version does not understand it.
Experiment experiment_of(const Checkpoint& checkpoint, const std::string& path);

// A key whose value is not the same in two experiments.
struct KeyChange {
  std::string_view key;
  std::string was, is;
  bool decides_result = false;  // false: it decides speed, place or record only (decides_what_is_learned())
  bool operator==(const KeyChange&) const = default;
};
// "learning_rate.base: 0.001 -> 0.002"
std::string to_string(const KeyChange& change);

// Every key that differs, in the order of the schema. Not run.dir and run.id, which name the folder.
std::vector<KeyChange> changed_keys(const Experiment& before, const Experiment& now);

// Throws Error when weights, optimizer state or position of the checkpoint would mean something else in this run:
// another model, data set, seed, batch, form of the optimizer's state. The message names every such key with both
// values.
void check_belongs(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan);

// The same of the checkpoint that a branch begins with (branch.from), or of its header.
void check_source(const Checkpoint& source, const RunPlan& plan);

// A sentence for the user when one of the `finished_steps` updates would have had another learning rate in this run
// than in the one `before`: the rates before and after the change, with steps counted in the first batch. "" when the
// course is the same so far. With AdaScale the steps are scale-invariant ones, of which there have been so many.
std::string changed_rate(const Experiment& before, const RunPlan& plan, const Position& position,
                         double scale_invariant_steps = 0);

}  // namespace ringtrain
