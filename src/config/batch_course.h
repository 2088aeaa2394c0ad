// The batch of every update of a run. It depends on the position in the data, never on the number of ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "config/experiment.h"
#include "config/position.h"

namespace ringtrain {

// A part of the run with one batch. The stage begins with the first update at or after this position.
struct BatchStage {
  std::int64_t epoch = 0, offset = 0;  // as in Position
  std::int64_t batch = 0;              // samples of an update
  double rate_factor = 1;              // multiplies the learning rate if batch.largest has limited the batch
  bool operator==(const BatchStage&) const = default;
};

struct BatchCourse {
  std::int64_t epoch_samples = 0;
  bool keeps_rest = false;         // data.last_batch: an epoch's last samples become a smaller batch
  std::vector<BatchStage> stages;  // at least one, in order; the first begins at the run's first sample

  const BatchStage& stage_at(const Position& position) const;
  // For the update that begins at `position`: batch_at() returns the number of rows that the ranks share, samples_at()
  // the number of samples among them. The other rows are padding. Only the smaller batch at an epoch's end has any.
  std::int64_t batch_at(const Position& position) const { return stage_at(position).batch; }
  std::int64_t samples_at(const Position& position) const;
  // Returns the position after that update.
  Position after(const Position& position) const;
  // Returns the position after `epochs` whole epochs with the batch of `position`. An epoch must begin at `position`.
  Position after_epochs(const Position& position, std::int64_t epochs) const;
  // Return the number of updates and of samples of one such epoch.
  std::int64_t updates_of_epoch(const Position& position) const;
  std::int64_t samples_of_epoch(const Position& position) const;
  // Returns `position`, or the beginning of the next epoch if no update can begin at `position`.
  Position settled(const Position& position) const;
  bool operator==(const BatchCourse&) const = default;
};

// Returns a course with the same batch in the whole run.
BatchCourse constant_course(std::int64_t batch, std::int64_t epoch_samples, bool keeps_rest = false);

// Returns the course of batch.schedule (Smith et al. 2018, arXiv:1711.00489). From epoch e on, the batch is
// batch.global times the factor. A batch above batch.largest becomes batch.largest, and the rate is divided by the
// ratio of the two batches. `epoch_span` is the length of an epoch in samples for schedules, which may use fractions of
// an epoch. With batch.follow_noise, the course begins with the constant batch.global, and the run changes it later.
BatchCourse batch_course(const BatchConfig& batch, std::int64_t epoch_samples, bool keeps_rest,
                         std::int64_t epoch_span);

// Returns every batch that a run may have, in increasing order. batch.global comes first.
std::vector<std::int64_t> batches_on_course(const BatchConfig& batch);

// Returns batch.global times the factor. The result need not be a whole number.
inline double scheduled_batch(const BatchConfig& batch, const EpochFactor& change) {
  return static_cast<double>(batch.global) * change.factor;
}

}  // namespace ringtrain
