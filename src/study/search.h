// Implements search: halving, the successive halving of Jamieson and Talwalkar 2016 ("Non-stochastic Best Arm
// Identification and Hyperparameter Optimization", arXiv:1502.07943) as in Dask-ML's SuccessiveHalvingSearchCV. A point
// is one combination of the varied keys; its trials differ only in the seed. A rung is a part of training between two
// comparisons. All points begin. At the end of each rung, the best 1 / factor of the points continue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/trials.h"

namespace ringtrain {

struct Rung {
  std::int64_t points = 0;   // number of points that run in this rung
  std::int64_t samples = 0;  // samples of each trial at the end of the rung, counted from the trial's beginning
  bool operator==(const Rung&) const = default;
};

// Returns the rungs for `points` (at least 1) with eta = factor. Rung i = 0, 1, ..., s = floor(log_eta points) has
// floor(points / eta^i) points.
// With first = 0, rung i ends at ceil(samples / eta^(s - i)). Otherwise it ends at first x eta^i, until this number is
// at least `samples` or only one point is left. That rung is the last one, and it ends at `samples`.
// It may follow rung s, and then has one point.
std::vector<Rung> halving_rungs(std::int64_t points, const HalvingBudget& budget);

// Returns the samples of the whole search with one seed: the sum of the samples that each point trains on. A point
// trains on whole batches, so it pauses at the first one that reaches the end of a rung.
double samples_of(const std::vector<Rung>& rungs, std::int64_t batch);

struct RungLoss {
  std::string point;
  double loss = 0;  // validation loss at the rung's end; not finite: diverged, failed or never evaluated
  int reached = 0;  // number of its trials that have reached their target
};

// Returns the `count` best points, the best first. A point is better if more of its trials have reached the target, or
// if as many have and its loss is lower. Points with equal losses are ordered by name. A point whose loss is not finite
// is never promoted, so the result may have fewer points.
std::vector<std::string> promoted(std::vector<RungLoss> losses, std::int64_t count);

// The trials that are compared with each other. A study has one search, or one for each value of budget.within.
struct TrialSearch {
  std::string value;                // of budget.within; "": the study's only search
  std::string name;                 // "global-128", part of the names of its files; "": the study's only search
  std::vector<std::size_t> places;  // of its trials in Trials::list
  std::vector<std::string> points;  // of these trials. Trials that differ only in the seed are one point
  std::vector<Rung> rungs;
};

// Returns the searches in the order of their first trials. Throws Error if the study has no budget, if an experiment
// has no validation data, if the trials have different numbers of ranks, if the trials of one search have different
// samples, or if budget.first is not smaller than they are.
std::vector<TrialSearch> searches_of(const Study& study, const Trials& trials);

// Returns the samples of all trials of the searches together, with every seed.
double samples_of_searches(const Study& study, const Trials& trials);

// Returns, for study.json: {"kind": "halving", "factor": 3, "rungs": [{"rung": 1, "samples": 1000, "trials": 9}, ...]}.
// With budget.within: {"kind": "halving", "factor": 3, "within": "batch.global", "searches": [{"value": "128",
// "names": [names of its trials], "rungs": [...]}, ...]}.
std::string search_json(const Study& study, const Trials& trials);

// Returns a table of the rungs for the user. It ends with the samples of the searches, and their share of the samples
// that all points would need without halving.
std::string describe_rungs(const Study& study, const Trials& trials);

}  // namespace ringtrain
