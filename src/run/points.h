// Points of a run that the user names by epochs or steps.
#pragma once

#include <optional>
#include <string>

#include "config/run_point.h"
#include "run/plan.h"

namespace ringtrain {

// Whether the update from `before` to `position` is the first one that ends at the point or after it. The same on any
// number of ranks: both are counted in updates and samples of the whole batch.
bool reaches(const RunPoint& point, const RunPlan& plan, const Position& before, const Position& position);

// Whether that update reaches a point of checkpoint.keep_at; before the first update, whether one of them is 0.
bool reaches_kept_point(const RunPlan& plan, const Position& before, const Position& position);

// Where it will be reached, whether or not the run ends before. Nothing where the batch follows the noise and the point
// is after the beginning.
std::optional<Position> position_of(const RunPoint& point, const RunPlan& plan);

// checkpoint.keep_at, each with its step.
std::string describe_kept(const RunPlan& plan);

// branch.*: from where, with which batch and rate.
std::string describe_branch(const RunPlan& plan);
// The end of a branch, which differs from the end of its source run. "" if no number of steps is known.
std::string describe_branch_stop(const RunPlan& plan);

}  // namespace ringtrain
