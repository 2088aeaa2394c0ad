// The position of a run: its finished updates and the samples that they have taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "config/experiment.h"

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

}  // namespace ringtrain
