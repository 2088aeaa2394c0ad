// The positions of a run, and the batch of every update. The batch depends on the position in the data, never on the
// number of ranks. A branch is a run that continues from another run's checkpoint with a multiple of that run's batch
// (Merrill et al. 2025, "Critical Batch Size Revisited", arXiv:2505.23971, section 3.1); the last functions compute its
// course.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

// The finished updates of a run and the samples that they have taken. A position counts samples and not only steps,
// because the batch may change during a run. BatchCourse says how many samples an update takes and where an epoch ends.
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

// Text for a point in a run, as users write it: 2, 0.5 epochs, 500 steps.
inline constexpr std::string_view expected_run_point =
    "a number of epochs of at least 0, or whole steps as in 500 steps";

// Reads a point. A number without a unit counts epochs. Returns nothing if the text is not a point in a run.
std::optional<RunPoint> parse_run_point(std::string_view text);

std::string to_string(const RunPoint& point);     // "2", "500 steps"
std::string with_unit(const RunPoint& point);     // "2 epochs", "500 steps"
std::string compact_text(const RunPoint& point);  // "2", "500steps": for a folder's name

// branch.from in the form RUN@POINT: results/names/parent@2 or results/names/parent@500steps.
struct RunAndPoint {
  std::string run;  // the run's folder
  RunPoint point;
};
// Returns nothing if the text is the path of a file.
std::optional<RunAndPoint> parse_run_and_point(std::string_view text);
// Returns the run's folder for either form of branch.from. For results/names/parent/checkpoints/step-000000500.h5 that
// is results/names/parent, too.
std::string run_of_source(const std::string& from);

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
