#include "run/adascale_plan.h"

#include <cmath>

#include "base/error.h"
#include "base/table.h"
#include "run/course.h"

namespace ringtrain {

void measure_by_base_batch(RunPlan& p) {
  const Experiment& e = p.experiment;
  const std::int64_t base = e.learning_rate.base_batch;
  p.adascale_times = static_cast<double>(p.batch.global) / static_cast<double>(base);
  LoaderPlan of_base = p.train_loader;
  of_base.global_batch = base;
  StopConfig by_epochs = e.stop, by_steps = e.stop;
  by_epochs.steps = 0;
  by_steps.epochs = 0;
  p.base_schedule.global_batch = base;
  p.base_schedule.steps_per_epoch = samples_per_epoch(p.train, of_base) / base;
  p.base_schedule.total_steps = total_steps(by_epochs, p.base_schedule.steps_per_epoch);
  p.schedule.total_steps = p.updates = total_steps(by_steps, p.schedule.steps_per_epoch);
}

const ScheduleContext& rate_schedule(const RunPlan& plan) {
  return plan.adascale_times > 0 ? plan.base_schedule : plan.schedule;
}

double schedule_steps(const RunPlan& plan, const Position& position, double scale_invariant_steps) {
  return plan.adascale_times > 0 ? std::floor(scale_invariant_steps) : plan.schedule.steps(position);
}

bool has_all_steps(const RunPlan& plan, const Position& position, double scale_invariant_steps) {
  if (is_over(plan, position)) return true;
  if (plan.experiment.branch.samples > 0) return false;
  const auto end = static_cast<double>(plan.base_schedule.total_steps);
  return plan.adascale_times > 0 && end > 0 && scale_invariant_steps >= end;
}

bool sums_small_norms(const RunPlan& plan) {
  return plan.adascale_times > 1;
}

std::int64_t gradient_elements(const RunPlan& plan, const ParameterTable& parameters) {
  constexpr std::int64_t alignment = 64;
  return parameters.size() + (sums_small_norms(plan) ? alignment : 0);
}

std::string describe_adascale_stop(const RunPlan& plan) {
  const std::int64_t steps = plan.base_schedule.total_steps;
  const double least = std::ceil(static_cast<double>(steps) / plan.adascale_times);
  return cat("after ", with_thousands(steps), " scale-invariant steps (", plan.experiment.stop.epochs,
             " epochs): ", with_thousands(std::llround(least)), " to ", with_thousands(steps), " steps");
}

}  // namespace ringtrain
