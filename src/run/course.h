// The batch, the learning rate and the end of a run as functions of the run's position. The batch may change.
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Computes course, schedule and updates from the rest of the plan. Throws Error if an epoch is smaller than a batch.
void plan_course(RunPlan& plan);

// Returns the learning rate of the update that begins at `position`. It is the rate of the schedule, reduced if
// batch.largest has limited the batch.
double rate_at(const RunPlan& plan, const Position& position);

// Returns the position after `step` updates with the first batch, counted from the beginning of the run. Schedules
// count their steps in this way.
Position place_of_step(const ScheduleContext& schedule, std::int64_t step);

// Returns whether stop.epochs or stop.steps end the run at this position. With AdaScale only stop.steps counts here;
// has_all_steps() also checks stop.epochs.
bool is_over(const RunPlan& plan, const Position& position);

// Returns the table of batch.schedule or batch.follow_noise for `plan`: from which epoch on the batch changes, its
// passes, its learning rate and its number of steps. "" if the batch never changes.
std::string describe_batch_course(const RunPlan& plan);
// Describes the points at which the schedule of the learning rate changes.
std::string describe_learning_rate(const RunPlan& plan);

}  // namespace ringtrain
