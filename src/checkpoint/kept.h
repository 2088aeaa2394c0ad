// The checkpoints that a run keeps forever (checkpoint.keep_at), and how to find them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/position.h"

namespace ringtrain {

// Every checkpoint contains the steps of the checkpoints that its run has kept so far, including its own.
std::vector<std::int64_t> kept_steps(const Checkpoint& checkpoint);
void set_kept_steps(Checkpoint& checkpoint, const std::vector<std::int64_t>& steps);

// Returns the path of the checkpoint in `run_dir` that was written at the first step at or after the point. Throws
// Error if there is none. The message names the checkpoints that exist, and checkpoint.keep_at.
std::string checkpoint_at(const std::string& run_dir, const RunPoint& point);

// Returns the path of the checkpoint that branch.from names. Throws Error if it does not exist.
std::string source_checkpoint(const std::string& from);

}  // namespace ringtrain
