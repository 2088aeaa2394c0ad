// How a model is divided among the ranks of a pipeline.
#pragma once

#include <string>
#include <vector>

#include "run/plan.h"

namespace ringtrain {

// The number of stages that the experiment asks for. 1 if every rank computes the whole model.
std::int64_t stages_of(const ParallelConfig& parallel);

// Fills in the cuts. Throws Error where the stages do not divide the ranks, or a layer is not there.
void plan_stages(RunPlan& plan, std::int64_t stages, int ranks);

// Micro-batches per step with which a pipeline's bubble is small, where batch.micro leaves their number open: 4 per
// stage, as Huang et al. 2019 (GPipe, section 2.3) advise. 1 for one stage.
std::int64_t passes_that_fill(std::int64_t stages);

// "4 ranks"; of a pipeline "4 ranks = 2 replicas of 2 stages": the ranks that share a batch are then the replicas.
std::string describe_ranks(const RunPlan& plan);

// What `plan` prints of the stages: layers, parameters, memory of a rank, bytes of a micro-batch that cross, the
// predicted share of time, the bubble. "" where there is one stage.
std::string describe_stages(const RunPlan& plan, Backend& backend);

}  // namespace ringtrain
