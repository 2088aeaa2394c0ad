// Points of a run that the user names by epochs or steps.
#pragma once

#include <optional>
#include <string>

#include "config/batch_course.h"
#include "run/plan.h"

namespace ringtrain {

// Returns whether the update from `before` to `position` is the first update that ends at the point or after it. The
// answer does not depend on the number of ranks, because positions count updates and samples of the global batch.
bool reaches(const RunPoint& point, const RunPlan& plan, const Position& before, const Position& position);

// Returns whether that update reaches a point of checkpoint.keep_at. Before the first update: whether one of the points
// is 0.
bool reaches_kept_point(const RunPlan& plan, const Position& before, const Position& position);

// Returns whether all ranks meet after the update from `before` to `position`, whatever its result is: for an
// evaluation, a checkpoint or the end of the run. Ranks that do not do the same work meet at no other time.
bool all_meet_after(const RunPlan& plan, const Position& before, const Position& position);

// Returns the position of the point, even if the run ends before it. Returns nothing if the batch follows the noise and
// the point is after the beginning.
std::optional<Position> position_of(const RunPoint& point, const RunPlan& plan);
// The same for a run that begins at `begin`, before the rest of its plan is made.
std::optional<Position> position_of(const RunPoint& point, const ScheduleContext& schedule, const BatchCourse& course,
                                    const Position& begin, bool follows_noise);

// Returns the points of checkpoint.keep_at, each with its step.
std::string describe_kept(const RunPlan& plan);

// Returns the keys branch.*: from which run and point, with which batch and rate.
std::string describe_branch(const RunPlan& plan);
// Returns the end of a branch, which differs from the end of its source run. "" if no number of steps is known.
std::string describe_branch_stop(const RunPlan& plan);

}  // namespace ringtrain
