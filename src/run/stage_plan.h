// Divides a model among the ranks of a pipeline.
#pragma once

#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// Returns the number of stages that the experiment asks for. 1 if every rank computes the whole model.
std::int64_t stages_of(const ParallelConfig& parallel);

// Computes the cuts. Throws Error if the stages do not divide the ranks, or if a named layer does not exist.
void plan_stages(RunPlan& plan, std::int64_t stages, int ranks);

// Returns the micro-batches per step for which a pipeline's bubble is small: 4 per stage, as Huang et al. 2019 (GPipe,
// section 2.3) advise. 1 for one stage. It is used if batch.micro leaves the number open.
std::int64_t passes_that_fill(std::int64_t stages);

// Returns "4 ranks", or for a pipeline "4 ranks = 2 replicas of 2 stages". The ranks that share a batch are then the
// replicas.
std::string describe_ranks(const RunPlan& plan);

// Returns the table of the stages for `plan`: layers, parameters, memory of a rank, bytes per micro-batch that cross
// between stages, the predicted share of the time, and the bubble. "" if there is one stage.
std::string describe_stages(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
