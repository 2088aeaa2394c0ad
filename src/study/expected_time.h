// Predicts how long a trial will take, from the times of earlier runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/preflight.h"
#include "study/trial_plan.h"

namespace ringtrain {

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
