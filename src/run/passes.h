// Plans the passes of a step: the micro-batch, the blocks that a pass computes again, what the loaders read, and the
// values that norms normalise together.
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Returns the passes with this micro-batch. `graph` is the model, with the blocks marked that a pass computes again.
RunPasses passes_of(const RunTask& task, const RunCourse& course, const RunSplit& split, Graph graph,
                    const MicroBatchChoice& choice);

// Returns the reason for the largest possible micro-batch, which nothing but the batch limits.
std::string reason_for_all(const BatchShares& shares);

// Returns the micro-batch without regard to memory.*: the one that the experiment states; that of ranks
// which share a worker, or of communication.order: fixed; `known` if it is possible; the one that the backend prefers.
// A pipeline gets enough micro-batches to fill it: 4 per stage, as Huang et al. 2019 (GPipe, section 2.3) advise.
MicroBatchChoice preferred_choice(const RunTask& task, const RunSplit& split, const Graph& model, Backend& backend,
                                  const MicroBatchChoice& known);

// Throws Error if a norm of the model normalises a single value: batch.worker x height x width is 1 for batch norm, and
// height x width x channels of a group is 1 for group norm. Its output would be its bias, whatever the picture is. Also
// for the smaller batch at an epoch's end.
void check_norm_values(const Experiment& experiment, const RunCourse& course, const RunSplit& split,
                       const Graph& model);

// Returns a warning if a norm normalises fewer than 4 values; "" otherwise.
std::string small_norm(const RunPlan& plan);

}  // namespace ringtrain
