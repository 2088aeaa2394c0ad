// Prints the plan of a run as tables.
#pragma once

#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Returns the tables that `plan` prints in full and `train` in short, in the order of the plan's stages (plan.h).
// `backend` is Backend::describe(). `memory` is rank_memory().
std::string describe_run(const RunPlan& plan, const std::string& backend, const std::vector<MemoryItem>& memory);
std::string describe_parameters(const RunPlan& plan);
std::string describe_memory(const std::vector<MemoryItem>& memory);

}  // namespace ringtrain
