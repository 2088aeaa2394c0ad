// The plan of a trial, before it runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "config/batch_plan.h"
#include "data/dataset.h"
#include "run/machine.h"
#include "run/plan.h"
#include "study/trials.h"

namespace ringtrain {

struct TrialPlan {
  BatchPlan batch;
  std::int64_t steps_per_epoch = 0;
  // Steps of the first batch. If the batch grows, the run has fewer updates. 0: not known, because another limit or
  // AdaScale ends the run.
  std::int64_t steps = 0;
  std::int64_t samples = 0;  // samples of these steps
  double peak_rate = 0;      // highest learning rate; for a branch, the rate at its beginning
  std::int64_t parameters = 0;
  std::string experiment_id;
};

// Returns the TrialPlan of a run that has been planned.
TrialPlan trial_plan_of(const RunPlan& plan);

// Plans trials as `ringtrain plan` does. The headers of a data set are read once for all trials.
class TrialPlanner {
 public:
  // `threads` is the number of threads of a rank if run.threads is 0. `device` is passed to make_planning_machine().
  // With `has_gpus`, trials may run on GPUs although they are planned for CPUs. Their keys `memory` are then left out,
  // because each trial checks them on its GPU.
  TrialPlanner(int threads, std::string device, bool has_gpus = false)
      : threads_(threads), device_(std::move(device)), has_gpus_(has_gpus) {}

  // Uses `index` for the data set with its prefix, so that the files are not read.
  void give(const DatasetIndex& index) { indices_[index.prefix] = index; }

  // Throws Error for every contradiction between the trial, its data and its ranks.
  TrialPlan plan(const Trial& trial);

 private:
  const DatasetIndex& index(const Experiment& experiment, const std::string& prefix, std::int64_t samples);
  Backend& backend(int threads);

  int threads_;
  std::string device_;
  bool has_gpus_;
  std::map<std::string, DatasetIndex> indices_;
  std::map<int, Machine> machines_;  // a machine for each number of threads
};

}  // namespace ringtrain
