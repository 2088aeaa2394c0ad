// The study file (configs/studies/README.md). Begin reading here. A study is an experiment and the keys that it varies.
// This folder (src/study) reads the file into a Study, makes the Trials from it (trials.h), and queues them for the
// ranks of a job (study_work.h). Each trial is an experiment with its own folder and trial.json (trial_record.h).
// expression.h computes keys from other keys, vary.h draws values, and search_course.h runs a search that stops
// bad trials early.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/reader.h"
#include "study/expression.h"
#include "study/vary.h"

namespace ringtrain {

// A rule "key: expression". The key is one of the study, or one of the experiment that has a number as its value.
struct Rule {
  std::string key;
  Expression expression;
  bool implied = false;  // true: the rule batch.global: batch_per_rank * ranks, which the program has added
};

// The end of each trial. Limits by epochs or samples replace both stop.epochs and stop.steps of the experiment. Limits
// by seconds or target replace only their own keys.
struct Limits {
  std::vector<Setting> settings;      // values of stop.epochs, stop.seconds, stop.target_metric, stop.target_value
  std::optional<Expression> samples;  // the samples of a trial, which are rounded up to whole steps
  bool ends_by_count() const;         // whether epochs or samples end a trial
};

// The key budget: of a study with search: halving (search.h).
struct HalvingBudget {
  std::int64_t samples = 0;  // samples of a trial that reaches the last rung; also the length of the rate's schedule
  std::int64_t factor = 3;   // Dask-ML's aggressiveness
  std::int64_t first = 0;    // samples of the first rung; 0: samples / factor^s, if there are s + 1 rungs
};

enum class Search { all, halving };

struct Study {
  explicit Study(ExperimentDraft draft) : base(std::move(draft)) {}

  std::string path, name;
  std::string experiment;              // the key experiment, or the experiment.yaml of the run that is branched
  std::vector<std::string> overrides;  // overrides for all trials, mainly from the command line
  ExperimentDraft base;                // the experiment with these overrides
  std::uint64_t seed = 1;              // seed of the draws
  std::vector<Axis> axes;  // the axis of branch, then ranks_per_trial, then those of vary in the file's order
  Draws draws;
  std::vector<Setting> seeds;  // the seeds of repeat; empty: the experiment's seed
  std::vector<Rule> rules;
  std::vector<Comparison> conditions;  // trials that do not fulfil all of them are left out
  Search search = Search::all;
  std::optional<HalvingBudget> budget;  // of search: halving; limits.samples has the samples
  std::string within;  // search: halving compares only trials in which this key has the same value; "": all trials
  Limits limits;

  bool sets(std::string_view key) const;  // whether an axis, a draw or a rule sets the key in at least one trial
};

// Reads a study. Throws Error. Its message is one sentence with the file, line and column, the expected value, and the
// nearest known key. The experiment's path is relative to the folder of the study file, or to the working directory
// if there is no such file.
Study read_study(const std::string& path, const std::vector<std::string>& overrides);
Study parse_study(const std::string& yaml, const std::string& path, const std::vector<std::string>& overrides);

// Returns the folder of the study's trials: results/<name>.
std::string study_folder(const Study& study);

}  // namespace ringtrain
