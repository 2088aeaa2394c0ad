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
  std::string trial, model;  // `model` is from model_keys()
  std::int64_t ranks = 1, global_batch = 0;
  double seconds_per_sample = 0;
};

// Returns the times of every run in the study's folder that has finished a step. Unreadable folders are ignored.
std::vector<MeasuredRun> measured_runs(const std::string& study_folder);

struct ExpectedTime {
  double seconds = 0;
  std::string from;  // source of the time: the name of the measured trial, such as "ranks-4", or "preflight"
};

class TimeExpectation {
 public:
  TimeExpectation(std::vector<MeasuredRun> runs, std::vector<Preflight> preflight)
      : runs_(std::move(runs)), preflight_(std::move(preflight)) {}

  // Returns the expected time of a trial. It follows from the run with the same model and number of ranks whose batch
  // is nearest in ratio. Without such a run, it follows from the preflight files, and does not include evaluations and
  // checkpoints. Returns nothing if neither gives a time, or if the trial's number of steps is not known.
  std::optional<ExpectedTime> of(const Trial& trial, const TrialPlan& plan) const;

 private:
  std::vector<MeasuredRun> runs_;
  std::vector<Preflight> preflight_;
};

}  // namespace ringtrain
