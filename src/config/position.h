// Where a run stands.
#pragma once

#include <cstdint>

namespace ringtrain {

// Counted in samples and not in steps alone, so that the batch may change during a run. An epoch takes samples in
// batches; what is left at its end and fills no batch is dropped.
struct Position {
  std::int64_t step = 0;     // finished updates
  std::int64_t samples = 0;  // that these updates have taken
  std::int64_t epoch = 0;    // finished epochs
  std::int64_t offset = 0;   // samples of the current epoch that have been taken
  bool operator==(const Position&) const = default;
};

// After one more update of `batch` samples, when the next update takes `next_batch`: an epoch of `epoch_samples` ends
// where fewer than that are left.
inline Position advanced(Position p, std::int64_t batch, std::int64_t next_batch, std::int64_t epoch_samples) {
  p.step += 1;
  p.samples += batch;
  p.offset += batch;
  if (epoch_samples - p.offset < next_batch) {
    p.epoch += 1;
    p.offset = 0;
  }
  return p;
}

// After `step` updates of `batch` samples each.
inline Position position_at(std::int64_t step, std::int64_t batch, std::int64_t epoch_samples) {
  const std::int64_t steps_per_epoch = epoch_samples / batch;
  return {step, step * batch, step / steps_per_epoch, step % steps_per_epoch * batch};
}

}  // namespace ringtrain
