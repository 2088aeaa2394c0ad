// Decides when the batch doubles because of the gradient noise scale (batch.follow_noise).
#pragma once

#include <cstdint>

#include "optim/noise_scale.h"

namespace ringtrain {

// The batch counts as small while it is less than `multiple` x the noise scale. A larger batch then saves more steps
// than it costs samples (McCandlish et al. 2018, arXiv:1812.06162, section 2.3). The comparison uses the lower bound of
// the scale, so that noise in the estimate alone does not double the batch. Every rank has the same averages, so all
// ranks make the same decision.
class NoiseFollower {
 public:
  // The batch must have been small for `patience` samples. `largest` is the largest batch allowed.
  NoiseFollower(double multiple, std::int64_t patience, std::int64_t largest)
      : multiple_(multiple), patience_(patience), largest_(largest) {}

  // Returns whether a step that measures the noise and ends after `samples` samples of the run can double `batch`, for
  // some result of its measurement.
  bool may_double(std::int64_t batch, std::int64_t samples) const;
  // Call this after a step that measured the noise. Returns the new batch, which is `batch` or twice `batch`.
  std::int64_t next(std::int64_t batch, const NoiseRatio& scale, std::int64_t samples);

  // For checkpoints: the samples of the run at the first of the consecutive steps that found the batch small.
  static constexpr std::int64_t not_small = -1;
  std::int64_t small_since() const { return small_since_; }
  void resume(std::int64_t small_since) { small_since_ = small_since; }

 private:
  double multiple_;
  std::int64_t patience_, largest_;
  std::int64_t small_since_ = not_small;
};

}  // namespace ringtrain
