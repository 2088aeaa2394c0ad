// The plan of a trial, before it runs, and the time that it is expected to take.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/preflight.h"
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

// Predicts how long a trial will take, from the times of earlier runs.

// The measured speed of a run. The time includes evaluations and checkpoints.
struct MeasuredRun {
  std::string trial, started;  // `started` is in UTC, as in run.json
  std::string settings;        // keys on which the time of a sample depends, apart from the batch, and their values
  bool on_cpu = false;
  std::int64_t ranks = 1, global_batch = 0, worker_batch = 0;
  double seconds_per_sample = 0;
};

// Returns the times of the runs in the study's folder that have finished a step and whose last start has ended. The
// newest run comes first. Unreadable folders are ignored. With `for_gpus`, runs on CPUs are left out.
std::vector<MeasuredRun> measured_runs(const std::string& study_folder, bool for_gpus = false);

struct ExpectedTime {
  double seconds = 0;
  std::string from;  // source of the time: the name of the measured trial, such as "ranks-4", or "preflight"
};

class TimeExpectation {
 public:
  TimeExpectation(std::vector<MeasuredRun> runs, std::vector<Preflight> preflight)
      : runs_(std::move(runs)), preflight_(std::move(preflight)) {}

  // Returns the expected time of a trial. It follows from a run with the same number of ranks and the same time_keys():
  // from one with the same batch.worker if there is one, then from the one whose batch is nearest in ratio, then from
  // the newest. Without such a run, it follows from the preflight files, and does not include evaluations and
  // checkpoints. Returns nothing if neither gives a time, or if the trial's number of steps is not known.
  std::optional<ExpectedTime> of(const Trial& trial, const TrialPlan& plan) const;

 private:
  std::vector<MeasuredRun> runs_;
  std::vector<Preflight> preflight_;
};

}  // namespace ringtrain
