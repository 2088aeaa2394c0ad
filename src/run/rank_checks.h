// Checks that the experiment can run on these ranks, apart from the batch arithmetic.
#pragma once

#include "config/batch_plan.h"
#include "config/experiment.h"

namespace ringtrain {

// Throws Error if ranks would share the workers of batch norm although there are servers with ranks of their own or a
// pipeline. Throws Error also if test.slow_rank or test.flip_bit_rank is not one of the job's `ranks`.
void check_ranks(const Experiment& experiment, const BatchPlan& batch, int ranks, bool has_servers,
                 std::int64_t stages);

}  // namespace ringtrain
