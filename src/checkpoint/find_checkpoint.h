// Finds a checkpoint: the one that a user means by a name, and the one with which a branch begins (branch.from).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "run/plan.h"

namespace ringtrain {

enum class WhichCheckpoint { best_or_newest, best, newest };

// Reads the checkpoint that `source` stands for, of its arrays only the weights. `source` is a checkpoint file, a run's
// folder, or an experiment file. The experiment.yaml in a run's folder stands for that run. Another experiment file
// stands for the newest run of its name, or for its run.dir or run.id. `overrides` change keys of the experiment file.
// Throws Error if there is no checkpoint, and the errors of read_checkpoint().
FoundCheckpoint find_weights(const std::string& source, const std::vector<std::string>& overrides,
                             WhichCheckpoint which = WhichCheckpoint::best_or_newest);

bool is_experiment_file(const std::string& source);  // tested by the end of the name

// Returns the path of the checkpoint in `run_dir` that was written at the first step at or after the point. Throws
// Error if there is none. The message names the checkpoints that exist, and checkpoint.keep_at.
std::string checkpoint_at(const std::string& run_dir, const RunPoint& point);

// Returns the path of the checkpoint that branch.from names. Throws Error if it does not exist.
std::string source_checkpoint(const std::string& from);

// Returns the branch point of a checkpoint that branch.from names: the point at which the branch leaves the run that it
// continues. The header of the checkpoint suffices.
BranchPoint branch_point_at(const Checkpoint& source);

// Makes the plan of a run that need not begin. A branch begins at the checkpoint that branch.from names or, if this
// names a point of a run that does not exist yet, where that run will reach the point. Throws Error as make_run_plan()
// and check_source() do.
RunPlan plan_of_new_run(const Experiment& experiment, const DatasetIndex& train, const DatasetIndex* validation,
                        int ranks, Backend& backend);

}  // namespace ringtrain
