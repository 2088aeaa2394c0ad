// How the batch changes over a run: a function of the place in the data, never of the number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "config/experiment.h"
#include "config/position.h"

namespace ringtrain {

// From the first update on that begins at this place of the data or after it.
struct BatchStage {
  std::int64_t epoch = 0, offset = 0;  // as Position's
  std::int64_t batch = 0;              // samples of an update
  double rate_factor = 1;              // of the learning rate: what batch.largest has cut off the batch
  bool operator==(const BatchStage&) const = default;
};

struct BatchCourse {
  std::int64_t epoch_samples = 0;
  bool keeps_rest = false;         // data.last_batch: what fills no batch at an epoch's end is a smaller one
  std::vector<BatchStage> stages;  // at least one, in their order; the first begins at the run's first sample

  const BatchStage& stage_at(const Position& position) const;
  // Of the update that begins at `position`: the rows that the ranks share, and how many of them are samples. The
  // others, which only the smaller batch at an epoch's end has, are padding.
  std::int64_t batch_at(const Position& position) const { return stage_at(position).batch; }
  std::int64_t samples_at(const Position& position) const;
  // After that update.
  Position after(const Position& position) const;
  // After `epochs` whole epochs with the batch of `position`, which begins one.
  Position after_epochs(const Position& position, std::int64_t epochs) const;
  // Of such an epoch.
  std::int64_t updates_of_epoch(const Position& position) const;
  std::int64_t samples_of_epoch(const Position& position) const;
  // The same position, or the next epoch's beginning where no update can begin any more.
  Position settled(const Position& position) const;
  bool operator==(const BatchCourse&) const = default;
};

// The same batch over the whole run.
BatchCourse constant_course(std::int64_t batch, std::int64_t epoch_samples, bool keeps_rest = false);

// batch.schedule (Smith et al. 2018, arXiv:1711.00489): from epoch e on batch.global x times. Where that is above
// batch.largest, the batch is batch.largest and the rate is divided by what is missing. `epoch_span`: samples from one
// epoch's first one to the next one's as schedules measure it, so that a fraction of an epoch is one of this.
// batch.follow_noise: a course of batch.global, which the run changes.
BatchCourse batch_course(const BatchConfig& batch, std::int64_t epoch_samples, bool keeps_rest,
                         std::int64_t epoch_span);

// Every batch that a run may have, in increasing order: batch.global first.
std::vector<std::int64_t> batches_on_course(const BatchConfig& batch);

// batch.global x times, whether or not that is a whole number.
inline double scheduled_batch(const BatchConfig& batch, const EpochFactor& change) {
  return static_cast<double>(batch.global) * change.factor;
}

}  // namespace ringtrain
