#include "config/rate_scaling.h"

#include <cmath>

#include "base/error.h"

namespace ringtrain {

double batch_ratio(const LearningRateConfig& config, std::int64_t global_batch) {
  if (config.base_batch == 0) return 1;
  return static_cast<double>(global_batch) / static_cast<double>(config.base_batch);
}

double peak_rate(const LearningRateConfig& config, std::int64_t global_batch) {
  if (config.scaling == "none") return config.base;
  if (config.scaling == "linear") return config.base * batch_ratio(config, global_batch);
  if (config.scaling == "sqrt" || config.scaling == "legw" || config.scaling == "adam_sde")
    return config.base * std::sqrt(batch_ratio(config, global_batch));
  throw Error(cat("learning_rate.scaling '", config.scaling, "' is not known"));
}

double warmup_epochs(const LearningRateConfig& config, std::int64_t global_batch) {
  return config.warmup_epochs * (config.scaling == "legw" ? batch_ratio(config, global_batch) : 1);
}

}  // namespace ringtrain
