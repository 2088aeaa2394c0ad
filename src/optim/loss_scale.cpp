#include "optim/loss_scale.h"

#include <algorithm>

namespace ringtrain {

LossScale::LossScale(const LossScaleConfig& config)
    : dynamic_(config.growth_steps > 0),
      value_(static_cast<float>(config.initial)),
      growth_steps_(config.growth_steps) {}

bool LossScale::advance(bool applied) {
  if (!dynamic_) return applied;
  if (!applied) {
    value_ /= 2;
    steps_ = 0;
    return value_ >= least;
  }
  if (++steps_ >= growth_steps_) {
    value_ = std::min(2 * value_, most);
    steps_ = 0;
  }
  return true;
}

void LossScale::resume(float value, std::int64_t steps_since_change) {
  if (!dynamic_) return;
  value_ = value;
  steps_ = steps_since_change;
}

}  // namespace ringtrain
