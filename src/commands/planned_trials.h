// The trials of a study, planned: what `study` and `study --plan` begin with.
#pragma once

#include <optional>
#include <vector>

#include "commands/commands.h"
#include "study/expected_time.h"
#include "study/trial_plan.h"
#include "study/trials.h"

namespace ringtrain {

struct PlannedTrial {
  const Trial* trial = nullptr;
  TrialPlan plan;
  std::optional<ExpectedTime> time;
};

// Every trial is planned before anything is said; an error names the first that cannot be, and how many others.
std::vector<PlannedTrial> plan_all(const Study& study, const std::vector<Trial>& trials, TrialPlanner& planner);

// The trials of --index K/N; all without it.
std::vector<Trial> taken_trials(const Study& study, const Trials& trials, const StudyArguments& arguments);

}  // namespace ringtrain
