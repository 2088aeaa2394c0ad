// Checks that the experiment can run on these ranks, apart from the batch arithmetic.
#pragma once

#include "config/batch_plan.h"
#include "config/experiment.h"

namespace ringtrain {

// Throws Error where ranks would share workers of batch norm beside servers with ranks of their own or in a
// pipeline, or where the rank that is slow, or whose bit flips, is none of the job's `ranks`.
void check_ranks(const Experiment& experiment, const BatchPlan& batch, int ranks, bool has_servers,
                 std::int64_t stages);

}  // namespace ringtrain
