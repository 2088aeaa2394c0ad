// What learning_rate.scaling makes of the base rate and of the warm-up. optim/learning_rate.h has the sources of these
// formulas, and the rate at each position.
#pragma once

#include <cstdint>

#include "config/experiment.h"

namespace ringtrain {

// Returns k = global_batch / base_batch, the ratio of the batch to the batch for which the base rate was chosen. 1 if
// base_batch is 0.
double batch_ratio(const LearningRateConfig& config, std::int64_t global_batch);

// Returns the highest rate of the schedule. Throws Error if the scaling is not known.
double peak_rate(const LearningRateConfig& config, std::int64_t global_batch);

// Returns the epochs of warm-up. legw: k times config.warmup_epochs.
double warmup_epochs(const LearningRateConfig& config, std::int64_t global_batch);

}  // namespace ringtrain
