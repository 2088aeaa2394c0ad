// The batch of every update of a run. The batch depends on the position in the data, never on the number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "config/experiment.h"
#include "config/position.h"

namespace ringtrain {

// A part of the run with one batch. The first update that begins at this position or after it begins the stage.
struct BatchStage {
  std::int64_t epoch = 0, offset = 0;  // as Position's
  std::int64_t batch = 0;              // samples of an update
  double rate_factor = 1;              // multiplies the learning rate where batch.largest has limited the batch
  bool operator==(const BatchStage&) const = default;
};

struct BatchCourse {
  std::int64_t epoch_samples = 0;
  bool keeps_rest = false;         // data.last_batch: an epoch's last samples become a smaller batch
  std::vector<BatchStage> stages;  // at least one, in their order; the first begins at the run's first sample

  const BatchStage& stage_at(const Position& position) const;
  // For the update that begins at `position`: batch_at() is the number of rows that the ranks share, samples_at() is
  // how many of these rows are samples. The other rows are padding. Only the smaller batch at an epoch's end has any.
  std::int64_t batch_at(const Position& position) const { return stage_at(position).batch; }
  std::int64_t samples_at(const Position& position) const;
  // The position after that update.
  Position after(const Position& position) const;
  // The position after `epochs` whole epochs with the batch of `position`. An epoch must begin at `position`.
  Position after_epochs(const Position& position, std::int64_t epochs) const;
  // The updates and the samples of one such epoch.
  std::int64_t updates_of_epoch(const Position& position) const;
  std::int64_t samples_of_epoch(const Position& position) const;
  // Returns `position`, or the beginning of the next epoch when no update can begin at `position`.
  Position settled(const Position& position) const;
  bool operator==(const BatchCourse&) const = default;
};

// The same batch over the whole run.
BatchCourse constant_course(std::int64_t batch, std::int64_t epoch_samples, bool keeps_rest = false);

// The course of batch.schedule (Smith et al. 2018, arXiv:1711.00489). From epoch e on, the batch is batch.global x
// times. A batch above batch.largest becomes batch.largest, and the rate is divided by the ratio of the two batches.
// `epoch_span` is the length of an epoch in samples as schedules measure it. Fractions of an epoch are fractions of it.
// With batch.follow_noise the course begins as the constant batch.global, and the run changes it later.
BatchCourse batch_course(const BatchConfig& batch, std::int64_t epoch_samples, bool keeps_rest,
                         std::int64_t epoch_span);

// Every batch that a run may have, in increasing order: batch.global first.
std::vector<std::int64_t> batches_on_course(const BatchConfig& batch);

// batch.global x times. The result need not be a whole number.
inline double scheduled_batch(const BatchConfig& batch, const EpochFactor& change) {
  return static_cast<double>(batch.global) * change.factor;
}

}  // namespace ringtrain
