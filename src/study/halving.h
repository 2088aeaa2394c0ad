// search: halving. Successive halving (Jamieson and Talwalkar 2016, "Non-stochastic Best Arm Identification and
// Hyperparameter Optimization", arXiv:1502.07943, in the form of Dask-ML's SuccessiveHalvingSearchCV). All points
// begin. At the end of each rung, the best 1 / factor of the points continue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ringtrain {

struct HalvingBudget {
  std::int64_t samples = 0;  // of a trial that reaches the last rung; also the length of the learning-rate schedule
  std::int64_t factor = 3;   // Dask-ML's aggressiveness
  std::int64_t first = 0;    // samples of the first rung; 0: samples / factor^s, if there are s + 1 rungs
};

struct Rung {
  std::int64_t points = 0;   // that run in it
  std::int64_t samples = 0;  // of each, counted from its beginning
  bool operator==(const Rung&) const = default;
};

// The rungs for `points` (at least 1) with eta = factor. Rung i = 0, 1, ..., s = floor(log_eta points) has
// floor(points / eta^i) points.
// With first = 0, rung i ends at ceil(samples / eta^(s - i)). Otherwise it ends at first x eta^i, until this number is
// at least `samples` or only one point is left. That rung is the last one, and it ends at `samples`.
std::vector<Rung> halving_rungs(std::int64_t points, const HalvingBudget& budget);

// The samples that all points train on together.
double samples_of(const std::vector<Rung>& rungs);

struct RungLoss {
  std::string point;
  double loss = 0;  // validation loss at the rung's end; not finite: diverged, failed or never evaluated
};

// The `count` points with the lowest losses, the lowest first. Points with equal losses are ordered by name. A point
// whose loss is not finite is never promoted, so the result may have fewer points.
std::vector<std::string> promoted(std::vector<RungLoss> losses, std::int64_t count);

}  // namespace ringtrain
