// Finds runs that have diverged although their loss is still a number (stop.diverged_share). Rank 0 gives it the loss
// of every step, in order. The result depends on these losses only, so a resumed run that reads them again from
// metrics.jsonl decides as the whole run does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "run/plan.h"

namespace ringtrain {

// How far a run is after a step. The members are those of metrics.jsonl.
struct LossPlace {
  std::int64_t step = 0, samples = 0;
  double elapsed_seconds = 0, scale_invariant_epoch = 0;
};

// The unit in which a run's length is known, and the length; 0: not known.
struct RunLength {
  enum class Unit { steps, samples, scale_invariant_epochs, seconds } unit = Unit::steps;
  double total = 0;
};

// Returns the loss of a model that guesses, in nats: the logarithm of the number of classes or symbols.
double loss_of_guessing(const DatasetIndex& train);

// Returns whether a run that is over has diverged: the mean loss of the last twentieth of its steps is above the loss
// of its first step. With fewer than 20 steps, or if the first step is not step 1 (a branch), it must be above twice
// that loss. It must also be above `guessing`. results/reporting/runs.py has the same rule (ran_away).
bool ends_diverged(std::span<const double> losses, std::int64_t first_step, double guessing);

class LossWatch {
 public:
  // `share` is stop.diverged_share. `guessing` is the loss of a model that guesses, in nats.
  LossWatch(double share, RunLength length, double guessing);
  explicit LossWatch(const RunPlan& plan);

  // Adds the losses of <run_dir>/metrics.jsonl, which earlier starts have written. Lines that are cut off are left out.
  void read(const std::string& run_dir);
  void add(const LossPlace& place, double loss);
  // Returns whether the run has diverged: the loss of every step in a stretch that ends with the newest step, and that
  // is at least the share of the run, is above a bound. The bound is the first loss if the stretch has at least 20
  // steps, and otherwise, or if the run does not begin with step 1 (a branch), twice the first loss. It is at least
  // `guessing`. A stretch has at least 5 steps.
  bool has_diverged() const { return diverged_; }
  // Returns "the loss has been above that of the first step (2.3) for 250 steps, ...". Call it if has_diverged().
  std::string describe() const;

 private:
  // The steps since the loss was last at or below a bound.
  struct Stretch {
    double since = 0;  // in the unit of the length
    std::int64_t steps = 0;
  };
  double measure(const LossPlace& place) const;
  bool is_long(const Stretch& stretch, double now, std::int64_t least_steps) const;

  double share_;
  RunLength length_;
  double guessing_;
  std::optional<double> first_;
  bool begins_trained_ = false, diverged_ = false;
  Stretch above_first_, above_twice_;
};

}  // namespace ringtrain
