// The batch, the learning rate and the end of a run as functions of the run's position. The batch may change.
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Computes course, schedule and updates from the rest of the plan. Throws Error if an epoch is smaller than a batch.
void plan_course(RunPlan& plan);

// Returns the learning rate of the update that begins at `position`: the rate of the schedule times
// BatchStage::rate_factor. AdaScale's gain is not included.
double rate_at(const RunPlan& plan, const Position& position);

// Returns the position after `step` updates with the first batch, counted from the beginning of the run. Schedules
// count their steps in this way.
Position place_of_step(const ScheduleContext& schedule, std::int64_t step);

// Returns whether stop.epochs or stop.steps end the run at this position. If branch.samples is set, it alone decides.
// With AdaScale, stop.epochs does not count here; has_all_steps() checks it too.
bool is_over(const RunPlan& plan, const Position& position);

// Returns the table of batch.schedule or batch.follow_noise for `ringtrain plan`. Each batch has a row with its first
// epoch, its passes, its learning rate and its number of steps. Returns "" if the batch never changes.
std::string describe_batch_course(const RunPlan& plan);
// Describes the points at which the schedule of the learning rate changes.
std::string describe_learning_rate(const RunPlan& plan);

}  // namespace ringtrain
