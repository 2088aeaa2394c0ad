// Loss scaling for fp16 (Micikevicius et al. 2018, section 3.2). The backward pass computes gradients that are `value`
// times too large, so that small gradients do not become zero. The update divides them by `value` again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "config/experiment.h"

namespace ringtrain {

class LossScale {
 public:
  LossScale() = default;  // for fp32 and bf16: the scale is 1, and every overflow is an error
  explicit LossScale(const LossScaleConfig& config)
      : dynamic_(config.growth_steps > 0),
        value_(static_cast<float>(config.initial)),
        growth_steps_(config.growth_steps) {}

  float value() const { return value_; }
  bool fixed() const { return !dynamic_; }  // the scale is the same in every step
  std::int64_t steps_since_change() const { return steps_; }

  // Call this after a step. `applied` says whether its gradient was finite. A dynamic scale is halved after a gradient
  // that was not finite, and doubled after growth_steps updates in a row, up to 2^24. Returns false if the gradient was
  // not finite and the scale cannot be lowered any further. A fixed scale can never be lowered. The training has then
  // diverged.
  bool advance(bool applied) {
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

  void resume(float value, std::int64_t steps_since_change) {
    if (!dynamic_) return;
    value_ = value;
    steps_ = steps_since_change;
  }

 private:
  static constexpr float least = 0x1p-14f, most = 0x1p24f;
  bool dynamic_ = false;
  float value_ = 1;
  std::int64_t growth_steps_ = 0, steps_ = 0;
};

}  // namespace ringtrain
