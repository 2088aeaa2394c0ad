// The checkpoints that a run keeps for ever (checkpoint.keep_at), and how they are found again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/run_point.h"

namespace ringtrain {

// Every checkpoint knows the steps of those that its run has kept so far, itself included.
std::vector<std::int64_t> kept_steps(const Checkpoint& checkpoint);
void set_kept_steps(Checkpoint& checkpoint, const std::vector<std::int64_t>& steps);

// The checkpoint in `run_dir` at the first step at or after the point. Throws Error where there is none; it names those
// that there are, and checkpoint.keep_at.
std::string checkpoint_at(const std::string& run_dir, const RunPoint& point);

// The checkpoint that branch.from names. Throws Error where there is none.
std::string source_checkpoint(const std::string& from);

}  // namespace ringtrain
