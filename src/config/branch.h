// A run that goes on from another run's checkpoint with a multiple of its batch (Merrill et al. 2025, "Critical Batch
// Size Revisited", arXiv:2505.23971, section 3.1): what that makes of the other run's course.
#pragma once

#include <cstdint>
#include <optional>

#include "config/batch_course.h"
#include "config/contradictions.h"
#include "config/experiment.h"

namespace ringtrain {

inline bool is_branch(const Experiment& experiment) {
  return !experiment.branch.from.empty();
}

// Of a branch: the run that it leaves, as far as its schedule goes: batch.global and batch.largest /
// branch.batch_factor, no branch.*. Of any other run: itself.
Experiment source_experiment(const Experiment& experiment);

// The run's batch and what its schedule's rate is multiplied by, at every place in the data: batch_course(), and of a
// branch the rate times branch.rate_factor.
BatchCourse course_of(const Experiment& experiment, std::int64_t epoch_samples, bool keeps_rest,
                      std::int64_t epoch_span);

std::optional<Contradiction> branch_contradiction(const Experiment& experiment);

}  // namespace ringtrain
