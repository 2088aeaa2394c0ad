// How far a run is, and how it ends: by itself, because it has diverged, or because it is asked to stop. Also the time
// that a stop takes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "config/experiment.h"
#include "run/plan.h"

namespace ringtrain {

// How far a run is. It is the same on all ranks, except that `elapsed_seconds` follows each rank's clock and only rank
// 0 counts `dropped`.
struct RunProgress {
  Position position = {};
  Position before = {};        // where the last update began; its `step` and `samples` are not stored
  double elapsed_seconds = 0;  // time spent on training, over all parts of the run
  double best_loss = 0;        // validation loss; has_best says whether there is one
  std::int64_t best_step = 0;
  bool has_best = false;
  std::int64_t evaluated_step = 0;   // step of the last evaluation
  double scale_invariant_steps = 0;  // AdaScale's steps; checkpoints store them with the TrainerState
  std::int64_t dropped = 0;          // backup workers: the gradients that came too late for their step
  std::int64_t norms_step = -1;      // step of the recomputed batch norm statistics in the newest checkpoint; -1: none
  // The values of the last evaluation. NaN: there was none.
  double evaluated_loss = std::numeric_limits<double>::quiet_NaN();
  double evaluated_accuracy = std::numeric_limits<double>::quiet_NaN();
};

// Why a run ended by itself.
struct RunEnd {
  enum class Cause { all_steps, target, seconds, recorded_order } cause = Cause::all_steps;
  double reached = 0;  // for target: the value of stop.target_metric
};

// Returns the end of a run whose evaluation has measured these values; nothing if they do not reach the target, or if
// there is none. A value that is NaN reaches no target.
std::optional<RunEnd> target_end(const StopConfig& stop, double validation_loss, double validation_accuracy);

// Returns why a run with this progress has ended; nothing if it has more to do. Evaluations that are due at its end may
// still be missing.
std::optional<RunEnd> end_of(const RunPlan& plan, const RunProgress& progress);

inline constexpr const char* target_reached = "target reached";

// Returns the word for run.json: target_reached, "target not reached", "all steps done", "stop.seconds" or "end of
// the recorded order".
std::string end_word(const RunEnd& end, const StopConfig& stop);

// Returns the words for the log: "validation_loss reached 1.42 (1.4187)". "" if the run has done all its steps and has
// no target.
std::string describe_end(const RunEnd& end, const StopConfig& stop);

// ---- Runs that have diverged although their loss is still a number (stop.diverged_share)

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

// Rank 0 gives it the loss of every step, in order. The result depends on these losses only, so a resumed run that
// reads them again from metrics.jsonl decides as the whole run does.
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

// ---- The time that a stop takes. After a request to stop, a run finishes its step and the next one, and writes a
// checkpoint. A job must therefore get a signal so long before its end: the N of Slurm's --signal=USR1@N

// The size of a checkpoint, and the seconds for writing it and reading it back.
struct CheckpointCost {
  std::int64_t bytes = 0;
  double seconds = 0;
};

// The cost of a stop, measured by the steps and checkpoints of a run.
struct StopCost {
  CheckpointCost checkpoint;
  double step_seconds = 0;  // 0: not measured yet
};

// Returns twice the time of a checkpoint and two steps, plus 10 s for launcher and scheduler, rounded up to a multiple
// of 10 s. The two steps are the one in which the signal arrives and the one whose sums tell all ranks. The time is
// doubled because a file system may be slow at times.
int lead_seconds(const StopCost& cost);

// Returns a text such as "to stop, this run needs the time of two steps of 0.2 s and of a checkpoint (98 MiB in 1.3 s,
// measured now)". In a Slurm job it goes on: ". To stop in time, this job needs --signal=USR1@20 or more".
std::string describe(const StopCost& cost, bool is_new, bool in_slurm);

}  // namespace ringtrain
