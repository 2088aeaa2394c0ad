// The parts of `ringtrain study`: study_plan.cpp plans the trials, study_job.cpp runs them, and study_progress.cpp
// shows how far they are.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "study/study_work.h"
#include "study/trial_launcher.h"
#include "study/trial_plan.h"
#include "study/trials.h"

namespace ringtrain {

// Plans the trials, for `study` and for `study --plan`, which prints them and their total cost.

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

// A job that works on a study. It starts each trial as `ringtrain train` on ranks of its own, as many side by side as
// fit. Returns the exit code: 85 if the job or a trial was asked to stop before all trials had ended, otherwise 1 if a
// trial of the queue has failed or could not be run, otherwise 0.
int run_study(StudyWork work, TrialLauncher launcher, std::vector<std::string> command_line);

// Shows the progress of a study: a line at the end of each trial and, on a terminal, a line that is drawn again.
class StudyProgress {
 public:
  // `ranks` is the number of ranks that can work at the same time.
  StudyProgress(const StudyWork& work, int ranks);

  // Prints what has changed since the last call. Call it again and again.
  void show();
  void end();  // shows the last changes, and ends the terminal's line

 private:
  void print(const std::string& event);
  std::string progress_text() const;
  std::optional<double> seconds_left() const;

  const StudyWork& work_;
  const int ranks_;
  StudyRecord record_;
  std::vector<double> since_;  // by place in the queue: the time at which the trial was first seen running
  const int width_;            // width of the terminal; 0: no terminal
  bool bar_shown_ = false;
};

// Returns "global-64_seed-2: finished after 200 steps and 12s, best validation loss 1.234".
std::string describe(const TrialRecord& record);

}  // namespace ringtrain
