// The batch of every update of a run. It depends on the position in the data, never on the number of ranks. A branch is
// a run that continues from another run's checkpoint with a multiple of that run's batch (Merrill et al. 2025,
// "Critical Batch Size Revisited", arXiv:2505.23971, section 3.1); the last functions compute its course.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "config/experiment.h"
#include "config/position.h"

namespace ringtrain {

// A part of the run in which the batch is constant. It begins with the first update at or after (epoch, offset).
struct BatchStage {
  std::int64_t epoch = 0, offset = 0;  // finished epochs, and samples of the next one, as in Position
  std::int64_t batch = 0;              // samples of an update
  double rate_factor = 1;              // multiplies the learning rate if batch.largest has limited the batch
  bool operator==(const BatchStage&) const = default;
};

struct BatchCourse {
  std::int64_t epoch_samples = 0;
  bool keeps_rest = false;         // true: an epoch's last samples become a smaller batch (data.last_batch: smaller)
  std::vector<BatchStage> stages;  // at least one, in order; the first begins at the run's first sample

  const BatchStage& stage_at(const Position& position) const;
  // These return the size of the update that begins at `position`. batch_at() counts all rows that the ranks share.
  // samples_at() leaves out rows of padding. Only the smaller batch at an epoch's end has padding.
  std::int64_t batch_at(const Position& position) const { return stage_at(position).batch; }
  std::int64_t samples_at(const Position& position) const;
  // Returns the position after the update that begins at `position`.
  Position after(const Position& position) const;
  // Returns the position after `epochs` whole epochs with the batch of `position`. An epoch must begin at `position`.
  Position after_epochs(const Position& position, std::int64_t epochs) const;
  // These return the number of updates, or of samples, of a whole epoch with the batch of `position`.
  std::int64_t updates_of_epoch(const Position& position) const;
  std::int64_t samples_of_epoch(const Position& position) const;
  // Returns `position`, or the beginning of the next epoch if no update can begin at `position`.
  Position settled(const Position& position) const;
  // Returns the first position at or after `from` at which `holds` is true. From then on, it must be true at all later
  // positions. Whole epochs are skipped, so that a long run takes no longer than a few epochs.
  Position first(const Position& from, const std::function<bool(const Position&)>& holds) const;
  bool operator==(const BatchCourse&) const = default;
};

// Returns a course with the same batch in the whole run.
BatchCourse constant_course(std::int64_t batch, std::int64_t epoch_samples, bool keeps_rest = false);

// Returns the course of batch.schedule (Smith et al. 2018, arXiv:1711.00489). From the epoch of a pair on, the batch is
// batch.global times the factor of the pair. A batch above batch.largest becomes batch.largest, and the learning rate
// is divided by the ratio of the two batches. The epoch may be a fraction. `epoch_span` is the length in samples with
// which it is converted to an offset. With batch.follow_noise, the course has the constant batch.global, and the run
// changes it later.
BatchCourse batch_course(const BatchConfig& batch, std::int64_t epoch_samples, bool keeps_rest,
                         std::int64_t epoch_span);

// Returns every batch that a run may have, in samples and in increasing order. batch.global comes first.
std::vector<std::int64_t> batches_on_course(const BatchConfig& batch);

// Returns batch.global times the factor, in samples. The result need not be a whole number.
inline double scheduled_batch(const BatchConfig& batch, const EpochFactor& change) {
  return static_cast<double>(batch.global) * change.factor;
}

// Returns whether a branch's batch is branch.batch_factor times a whole number, the batch of the run that it continues.
bool has_source_batch(std::int64_t batch, const Experiment& experiment);

// Returns the experiment of the run that a branch continues, as far as the schedule depends on it: batch.global and
// batch.largest are divided by branch.batch_factor, and branch.* has its defaults. An experiment that is not a branch
// is returned unchanged.
Experiment source_experiment(const Experiment& experiment);

// Returns the run's batch and the factor of its scheduled learning rate, at every position in the data. The result is
// that of batch_course(). In a branch, the factor is also multiplied by branch.rate_factor.
BatchCourse course_of(const Experiment& experiment, std::int64_t epoch_samples, bool keeps_rest,
                      std::int64_t epoch_span);

}  // namespace ringtrain
