// The position of a run: its finished updates and the samples that they have taken.
#pragma once

#include <cstdint>

namespace ringtrain {

// A position counts samples and not only steps, because the batch may change during a run. BatchCourse says how many
// samples an update takes and where an epoch ends.
struct Position {
  std::int64_t step = 0;     // finished updates
  std::int64_t samples = 0;  // samples that these updates have taken
  std::int64_t epoch = 0;    // finished epochs
  std::int64_t offset = 0;   // samples of the current epoch that have been taken
  bool operator==(const Position&) const = default;
};

// Returns the position after `step` updates of `batch` samples each. The run must drop the last samples of an epoch if
// they do not fill a batch.
inline Position position_at(std::int64_t step, std::int64_t batch, std::int64_t epoch_samples) {
  const std::int64_t steps_per_epoch = epoch_samples / batch;
  return {step, step * batch, step / steps_per_epoch, step % steps_per_epoch * batch};
}

}  // namespace ringtrain
