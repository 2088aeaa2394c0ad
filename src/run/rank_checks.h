// Checks that the experiment can run on these ranks, apart from the batch arithmetic.
#pragma once

#include "config/batch_plan.h"
#include "config/experiment.h"
#include "nn/parameters.h"

namespace ringtrain {

// Throws Error if ranks would share the workers of batch norm although there are servers with ranks of their own or a
// pipeline. Throws Error also if test.slow_rank or test.flip_bit_rank is not one of the job's `ranks`.
void check_ranks(const Experiment& experiment, const BatchPlan& batch, int ranks, bool has_servers,
                 std::int64_t stages);

// Throws Error if no tensor of a run with these parameters can be the one that test.flip_bit_in names.
void check_flipped_tensor(const Experiment& experiment, const ParameterTable& parameters);

}  // namespace ringtrain
