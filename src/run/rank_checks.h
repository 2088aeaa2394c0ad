// What an experiment asks of its ranks beyond the batch arithmetic.
#pragma once

#include "backend/backend.h"
#include "config/batch_plan.h"
#include "config/experiment.h"

namespace ringtrain {

// Throws Error where ranks would share workers of batch norm on GPUs, or the slow rank is none of them.
void check_ranks(const Experiment& experiment, const BatchPlan& batch, const Backend& backend);

}  // namespace ringtrain
