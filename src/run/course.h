// The batch, the learning rate and the end of a run as functions of the run's position. The batch may change.
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Fills in course, schedule and updates from the rest of the plan. Throws Error where an epoch is smaller than a batch.
void plan_course(RunPlan& plan);

// The learning rate of the update that begins at `position`: the rate of the schedule, reduced where batch.largest has
// limited the batch.
double rate_at(const RunPlan& plan, const Position& position);

// The position after `step` updates of the first batch, counted from the run's beginning. Schedules measure by it.
Position place_of_step(const ScheduleContext& schedule, std::int64_t step);

// Whether stop.epochs or stop.steps end the run at this position. With AdaScale, stop.steps: has_all_steps() knows its
// epochs.
bool is_over(const RunPlan& plan, const Position& position);

// What `plan` prints of batch.schedule and batch.follow_noise: from which epoch on which batch, in how many passes, at
// which rate, for how many steps. "" where the batch never changes.
std::string describe_batch_course(const RunPlan& plan);
// Describes the points at which the learning rate changes its course.
std::string describe_learning_rate(const RunPlan& plan);

}  // namespace ringtrain
