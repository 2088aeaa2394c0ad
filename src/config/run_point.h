// Text for a point in a run, as users write it: 2, 0.5 epochs, 500 steps.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/experiment.h"

namespace ringtrain {

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
