// Plans the trials of a study, for `study` and for `study --plan`, which prints them and their total cost.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "study/trial_plan.h"
#include "study/trials.h"

namespace ringtrain {

struct PlannedTrial {
  const Trial* trial = nullptr;
  TrialPlan plan;
  std::optional<ExpectedTime> time;
};

// Returns the places in `trials` of the trials that --index K/N chooses. Without --index, these are all trials. Throws
// Error if --index is given for a study with search: halving.
std::vector<std::size_t> taken_places(const Study& study, const Trials& trials, const StudyArguments& arguments);

// Reads a data set of an experiment. `samples` is data.train_samples or data.validation_samples. Throws Error.
using ReadDataSet = std::function<void(const Experiment&, const std::string& prefix, std::int64_t samples)>;

// Reads the data sets of the trials at `places`, each once. Returns the places of the trials whose data can be read.
// Warns of the other trials, which will fail. Throws Error if no trial has its data.
std::vector<std::size_t> places_with_data(const Study& study, const Trials& trials,
                                          const std::vector<std::size_t>& places, const ReadDataSet& read);

// Plans the trials at `places`, in that order. All trials are planned before an error is reported. Throws Error, which
// names the first trial that cannot be planned and says how many others cannot.
std::vector<PlannedTrial> plan_all(const Study& study, const Trials& trials, const std::vector<std::size_t>& places,
                                   TrialPlanner& planner);

// Returns a planner for trials of which some may run on the GPUs that this process sees. Without GPUs, or if no trial
// asks for one, it plans for CPUs. `threads` and `device` are passed to TrialPlanner.
TrialPlanner make_planner(const Trials& trials, int threads, const std::string& device);

}  // namespace ringtrain
