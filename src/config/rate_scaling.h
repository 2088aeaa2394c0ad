// What learning_rate.scaling makes of the base rate and of the warm-up. optim/schedule.h has the sources of these
// formulas, and the rate at each position.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/error.h"
#include "config/experiment.h"

namespace ringtrain {

// Returns k = global_batch / base_batch, the ratio of the batch to the batch for which the base rate was chosen. 1 if
// base_batch is 0.
inline double batch_ratio(const LearningRateConfig& config, std::int64_t global_batch) {
  if (config.base_batch == 0) return 1;
  return static_cast<double>(global_batch) / static_cast<double>(config.base_batch);
}

// Returns the highest rate of the schedule. Throws Error if the scaling is not known.
inline double peak_rate(const LearningRateConfig& config, std::int64_t global_batch) {
  if (config.scaling == "none") return config.base;
  if (config.scaling == "linear") return config.base * batch_ratio(config, global_batch);
  if (config.scaling == "sqrt" || config.scaling == "legw" || config.scaling == "adam_sde")
    return config.base * std::sqrt(batch_ratio(config, global_batch));
  throw Error(cat("learning_rate.scaling '", config.scaling, "' is not known"));
}

// Returns the epochs of warm-up. legw: k times config.warmup_epochs.
inline double warmup_epochs(const LearningRateConfig& config, std::int64_t global_batch) {
  return config.warmup_epochs * (config.scaling == "legw" ? batch_ratio(config, global_batch) : 1);
}

}  // namespace ringtrain
