#include "study/trial_plan.h"

#include <algorithm>

#include "checkpoint/branch_point.h"
#include "config/experiment.h"
#include "run/course.h"
#include "run/plan.h"

namespace ringtrain {

const DatasetIndex& TrialPlanner::index(const Experiment& experiment, const std::string& prefix, std::int64_t samples) {
  const auto known = indices_.find(prefix);
  if (known != indices_.end()) return known->second;
  return indices_.emplace(prefix, planned_index(experiment, prefix, samples)).first->second;
}

Backend& TrialPlanner::backend(int threads) {
  const auto known = machines_.find(threads);
  if (known != machines_.end()) return *known->second.backend;
  return *machines_.emplace(threads, make_planning_machine(threads, device_)).first->second.backend;
}

TrialPlan TrialPlanner::plan(const Trial& trial) {
  Experiment e = trial.experiment;
  if (has_gpus_ && e.machine.device != "cpu") e.memory = {};
  const DatasetIndex& train = index(e, e.data.train, e.data.train_samples);
  const DatasetIndex* validation =
      e.data.validation.empty() ? nullptr : &index(e, e.data.validation, e.data.validation_samples);
  const int threads = e.run.threads > 0 ? static_cast<int>(e.run.threads) : threads_;
  return trial_plan_of(plan_of_new_run(e, train, validation, static_cast<int>(trial.ranks), backend(threads)));
}

TrialPlan trial_plan_of(const RunPlan& p) {
  const Experiment& e = p.experiment;
  TrialPlan plan;
  plan.batch = p.batch;
  plan.parameters = p.parameters.count();
  plan.steps_per_epoch = p.schedule.steps_per_epoch;
  plan.steps = p.schedule.total_steps;
  plan.samples = plan.steps * p.batch.global;
  if (e.data.last_batch == "smaller" && plan.steps_per_epoch > 0)  // samples of whole epochs, then of whole batches
    plan.samples =
        plan.steps / plan.steps_per_epoch * p.samples_per_epoch + plan.steps % plan.steps_per_epoch * p.batch.global;
  if (is_branch(e)) {
    plan.steps = p.updates > 0 ? p.updates - p.branch.position.step : 0;
    plan.samples = plan.steps * p.batch.global;
    plan.peak_rate = rate_at(p, p.branch.position);
    plan.experiment_id = experiment_id(p);
    return plan;
  }
  for (const RateChange& change : rate_changes(p)) plan.peak_rate = std::max(plan.peak_rate, change.rate);
  plan.experiment_id = experiment_id(p);
  return plan;
}

}  // namespace ringtrain
