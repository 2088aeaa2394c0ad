// The part of a run's plan for the batch norm statistics of evaluations (evaluate.norm_statistics).
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Fills in norm_samples and norm_loader. Throws Error when the training set has fewer samples.
void plan_norms(RunPlan& plan);

// The weight of a step's statistics in the running statistics.
float norm_momentum(const Experiment& experiment);

// For a table; with running statistics there is nothing to say.
std::string describe_norm_statistics(const Experiment& experiment);

}  // namespace ringtrain
