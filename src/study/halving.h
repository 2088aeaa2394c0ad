// Implements search: halving, the successive halving of Jamieson and Talwalkar 2016 ("Non-stochastic Best Arm
// Identification and Hyperparameter Optimization", arXiv:1502.07943) as in Dask-ML's SuccessiveHalvingSearchCV. A point
// is one combination of the varied keys; its trials differ only in the seed. A rung is a part of training between two
// comparisons. All points begin. At the end of each rung, the best 1 / factor of the points continue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

struct HalvingBudget {
  std::int64_t samples = 0;  // samples of a trial that reaches the last rung; also the length of the rate's schedule
  std::int64_t factor = 3;   // Dask-ML's aggressiveness
  std::int64_t first = 0;    // samples of the first rung; 0: samples / factor^s, if there are s + 1 rungs
};

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

// Returns the samples of the whole search with one seed: the sum of the samples that each point trains on.
double samples_of(const std::vector<Rung>& rungs);

struct RungLoss {
  std::string point;
  double loss = 0;  // validation loss at the rung's end; not finite: diverged, failed or never evaluated
  int reached = 0;  // number of its trials that have reached their target
};

// Returns the `count` best points, the best first. A point is better if more of its trials have reached the target, or
// if as many have and its loss is lower. Points with equal losses are ordered by name. A point whose loss is not finite
// is never promoted, so the result may have fewer points.
std::vector<std::string> promoted(std::vector<RungLoss> losses, std::int64_t count);

}  // namespace ringtrain
