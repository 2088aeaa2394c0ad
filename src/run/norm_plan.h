// The values that norms normalise together, and the statistics of evaluations (evaluate.norm_statistics).
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Throws Error if a norm of the model normalises a single value: batch.worker x height x width is 1 for batch norm, and
// height x width x channels of a group is 1 for group norm. Its output would be its bias, whatever the picture is. Also
// for the smaller batch at an epoch's end.
void check_norm_values(const Experiment& experiment, const RunCourse& course, const RunSplit& split,
                       const Graph& model);

// Returns a warning if a norm normalises fewer than 4 values; "" otherwise.
std::string small_norm(const RunPlan& plan);

// Returns the weight of a step's statistics in the running statistics.
float norm_momentum(const Experiment& experiment);

// Returns a row for a table. The table has no such row if the run uses running statistics.
std::string describe_norm_statistics(const Experiment& experiment);

}  // namespace ringtrain
