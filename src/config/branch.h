// A branch is a run that continues from another run's checkpoint with a multiple of that run's batch (Merrill et al.
// 2025, "Critical Batch Size Revisited", arXiv:2505.23971, section 3.1). This file computes the course of a branch.
#pragma once

#include <cstdint>

#include "config/batch_course.h"
#include "config/experiment.h"

namespace ringtrain {

inline bool is_branch(const Experiment& experiment) {
  return !experiment.branch.from.empty();
}

// Returns whether a branch's batch is branch.batch_factor times a whole number, the batch of the run that it continues.
bool has_source_batch(std::int64_t batch, const Experiment& experiment);

// Returns the experiment of the run that a branch continues, as far as the schedule depends on it: batch.global and
// batch.largest are divided by branch.batch_factor, and branch.* has its defaults. An experiment that is not a branch
// is returned unchanged.
Experiment source_experiment(const Experiment& experiment);

// Returns the run's batch and the factor of its scheduled learning rate, at every position in the data. The result is
// that of batch_course(). In a branch, the factor is also multiplied by branch.rate_factor.
BatchCourse course_of(const Experiment& experiment, std::int64_t epoch_samples, bool keeps_rest,
                      std::int64_t epoch_span);

}  // namespace ringtrain
