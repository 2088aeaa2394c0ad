// How a run's ranks and its batch are shared out where parameter servers have ranks of their own.
#pragma once

#include <optional>
#include <string>

#include "run/plan.h"

namespace ringtrain {

// Of servers with ranks of their own.
std::int64_t server_ranks(const ParallelConfig& parallel);

// None where all ranks do the same. Throws Error where there are too few ranks, the workers do not divide the batch, or
// ranks compute on GPUs.
std::optional<ServerPlan> server_plan(const Experiment& experiment, int ranks, bool on_device);

// async: the experiment whose step is one update, a worker's share of every batch. Else the same one.
Experiment experiment_of_update(const Experiment& experiment, const ServerPlan& servers);

// "1, and 3 workers; asynchronous: an update is 32 samples of one worker; ..."
std::string describe_servers(const RunPlan& plan);

}  // namespace ringtrain
