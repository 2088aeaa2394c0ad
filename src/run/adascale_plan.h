// The changes that AdaScale makes to a run's plan. The learning rate and stop.epochs are measured in steps of
// learning_rate.base_batch samples. An update counts as 1 to S such steps, where S = batch.global / base_batch.
#pragma once

#include <string>

#include "run/plan.h"

namespace ringtrain {

// Sets RunPlan::adascale_times and base_schedule, whose epochs have as many steps as those of a run at base_batch.
// stop.epochs counts these epochs. stop.steps counts updates.
void measure_by_base_batch(RunPlan& plan);

// Returns the schedule of the learning rate: base_schedule with AdaScale, otherwise RunPlan::schedule.
const ScheduleContext& rate_schedule(const RunPlan& plan);
// Returns the step of the schedule at this point of the run. It is the position in steps or, with AdaScale, the whole
// part of `scale_invariant_steps` (Johnson et al. 2020, algorithm 1).
double schedule_steps(const RunPlan& plan, const Position& position, double scale_invariant_steps);

// Returns whether stop.epochs or stop.steps end the run at this position. With AdaScale, `scale_invariant_steps` count
// for stop.epochs. If branch.samples is set, it alone decides.
bool has_all_steps(const RunPlan& plan, const Position& position, double scale_invariant_steps);

// Returns whether the norms of the small batches are summed over the ranks with the gradients: AdaScale's update needs
// them.
bool sums_small_norms(const RunPlan& plan);
// Returns the length of the vector of gradients: the elements of the parameters, and after them a place for the sum of
// norms.
std::int64_t gradient_elements(const RunPlan& plan, const ParameterTable& parameters);

// Returns a text such as "after 900 scale-invariant steps (10 epochs): 113 to 900 steps".
std::string describe_adascale_stop(const RunPlan& plan);

}  // namespace ringtrain
