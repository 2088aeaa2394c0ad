// Divides the ranks and the batch of a run whose parameter servers have their own ranks.
#pragma once

#include <optional>
#include <string>

#include "run/plan.h"

namespace ringtrain {

// Returns nothing if all ranks do the same. Throws Error if there are too few ranks, if the workers do not divide the
// batch, or if ranks compute on GPUs.
std::optional<ServerPlan> server_plan(const Experiment& experiment, int ranks, bool on_device);

// With async, returns an experiment in which a step is one update, so its batches are one worker's share. Otherwise
// returns the same experiment.
Experiment experiment_of_update(const Experiment& experiment, const ServerPlan& servers);

// Returns a text such as "1, and 3 workers; asynchronous, an update is 32 samples of one worker; ...".
std::string describe_servers(const RunPlan& plan);

}  // namespace ringtrain
