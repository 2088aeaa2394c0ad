// Describes for `ringtrain plan` how the ranks of a run share its work (split.h): servers, owners of weights, stages.
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Returns "4 ranks", or for a pipeline "4 ranks = 2 replicas of 2 stages". The ranks that share a batch are then the
// replicas.
std::string describe_ranks(const RunPlan& plan);

// Returns a text such as "1, and 3 workers; asynchronous, an update is 32 samples of one worker; ...". The run has
// servers with ranks of their own.
std::string describe_servers(const RunPlan& plan);

// Returns one line for servers that are workers too or for sharded state; "" for other runs.
std::string describe_owners(const RunPlan& plan);

// Returns a table with a row for each kind of rank: its elements, the bytes of its optimizer state, and its memory. ""
// if all ranks do the same.
std::string owner_table(const RunPlan& plan, Backend& backend);

// Returns the table of the stages for `plan`: layers, parameters, memory of a rank, bytes per micro-batch that cross
// between stages, the predicted share of the time, and the bubble. "" if there is one stage.
std::string describe_stages(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
