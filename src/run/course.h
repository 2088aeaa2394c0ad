// The batch, the learning rate and the end of a run as functions of the run's position, and the points of a run that
// the user names by epochs or steps. The batch may change. With AdaScale, the learning rate and stop.epochs are
// measured in steps of learning_rate.base_batch samples. An update counts as 1 to S such steps, where S = batch.global
// / base_batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/batch_course.h"
#include "run/plan.h"

namespace ringtrain {

// Plans the course of a run. `sequence` is Graph::sequence(). Throws Error if an epoch is smaller than a batch or than
// evaluate.norm_samples, if branch.samples reaches beyond the end of a cosine or polynomial schedule, or if the
// schedule of the learning rate is incomplete.
RunCourse plan_course(const Experiment& experiment, const DatasetIndex& train, std::int64_t sequence,
                      const std::optional<BranchPoint>& branch = std::nullopt);

// Returns the steps of the whole run by stop.epochs and stop.steps, whichever ends first, if all steps have the first
// batch. 0: neither is given. Not for AdaScale, whose epochs are those of RunCourse::base_schedule.
std::int64_t total_steps(const StopConfig& stop, std::int64_t steps_per_epoch);

// Returns the schedule of the learning rate: base_schedule with AdaScale, otherwise RunCourse::schedule.
const ScheduleContext& rate_schedule(const RunCourse& plan);
// Returns the step of the schedule at this point of the run. It is the position in steps or, with AdaScale, the whole
// part of `scale_invariant_steps` (Johnson et al. 2020, algorithm 1).
double schedule_steps(const RunCourse& plan, const Position& position, double scale_invariant_steps);

// Returns whether the norms of the small batches are summed over the ranks with the gradients: AdaScale's update needs
// them.
bool sums_small_norms(const RunCourse& plan);
// Returns the length of the vector of gradients: the elements of the parameters, and after them a place for the sum of
// norms.
std::int64_t gradient_elements(const RunCourse& plan, const ParameterTable& parameters);

// Returns the learning rate of the update that begins at `position`: the rate of the schedule times
// BatchStage::rate_factor. The run trains with this rate. AdaScale's gain is not included; its schedule counts
// `scale_invariant_steps`.
double rate_at(const RunPlan& plan, const Position& position, double scale_invariant_steps = 0);

// Returns decay_factor() of the update of `samples` samples that begins at `position` (optim/schedule.h).
double decay_factor_at(const RunPlan& plan, const Position& position, std::int64_t samples);

// Returns the stages of the course. With batch.follow_noise, the first stage comes again with the largest batch.
std::vector<BatchStage> batch_stages(const RunPlan& plan);
// Returns rate x weight decay of a step of this stage at the peak rate: the share of the weights that decoupled decay
// takes away.
double peak_decay(const RunPlan& plan, const BatchStage& stage);

// An update at which the schedule of the learning rate changes.
struct RateChange {
  std::int64_t step = 0;  // the steps before the first update with this rate. In metrics.jsonl, that update is step + 1
  double epoch = 0;       // where this update begins
  double rate = 0;
  std::string what;  // "start of warm-up", "peak", "milestone, epoch 30", "last update" ...
};
// Returns these updates in order, with the rates that they have in the run. A branch has only its own. With AdaScale or
// batch.follow_noise, the updates are not known. The result then has the steps of rate_schedule(), and no last update.
std::vector<RateChange> rate_changes(const RunPlan& plan);

// Returns whether an update of the run begins at or after this step of rate_schedule().
bool has_step(const RunPlan& plan, std::int64_t step);
// Returns the epoch of rate_schedule() at which the run ends. 0: not known.
double end_epoch(const RunPlan& plan);

// Returns the position after `step` updates with the first batch, counted from the beginning of the run. Schedules
// count their steps in this way.
Position place_of_step(const ScheduleContext& schedule, std::int64_t step);

// Returns whether stop.epochs or stop.steps end the run at this position. If branch.samples is set, it alone decides.
// With AdaScale, stop.epochs does not count here; has_all_steps() checks it too, with `scale_invariant_steps`.
bool is_over(const RunPlan& plan, const Position& position);
bool has_all_steps(const RunPlan& plan, const Position& position, double scale_invariant_steps);

// Returns the table of batch.schedule or batch.follow_noise for `ringtrain plan`. Each batch has a row with its first
// epoch, its passes, its learning rate and its number of steps. With batch.follow_noise, a row has only the
// batch and its passes, and further rows say when the batch doubles and how many steps the run may have. Returns "" if
// the batch never changes.
std::string describe_batch_course(const RunPlan& plan);
// Returns the table of rate_changes() for `ringtrain plan`.
std::string describe_learning_rate(const RunPlan& plan);
// Returns a text such as "after 900 scale-invariant steps (10 epochs): 113 to 900 steps".
std::string describe_adascale_stop(const RunPlan& plan);

// ---- Points of a run

// Returns whether the update from `before` to `position` is the first update that ends at the point or after it. The
// answer does not depend on the number of ranks, because positions count updates and samples of the global batch.
bool reaches(const RunPoint& point, const RunPlan& plan, const Position& before, const Position& position);

// Returns whether that update reaches a point of checkpoint.keep_at. Before the first update: whether one of the points
// is 0.
bool reaches_kept_point(const RunPlan& plan, const Position& before, const Position& position);

// Returns whether the update from `before` to `position` reaches a multiple of `every_epochs` (may be a fraction) or
// `every_steps`; 0 = never. If `offset_epochs` is above 0, the first time is after `offset_epochs`, and the next times
// follow `every_epochs` apart.
bool due(double every_epochs, std::int64_t every_steps, const RunPlan& plan, const Position& before,
         const Position& position, double offset_epochs = 0);

// Returns whether all ranks meet after the update from `before` to `position`, whatever its result is: for an
// evaluation, a checkpoint or the end of the run. Ranks that do not do the same work meet at no other time.
bool all_meet_after(const RunPlan& plan, const Position& before, const Position& position);

// Returns the position of the point, even if the run ends before it. Returns nothing if the batch follows the noise and
// the point is after the beginning.
std::optional<Position> position_of(const RunPoint& point, const RunPlan& plan);

// Returns the points of checkpoint.keep_at, each with its step.
std::string describe_kept(const RunPlan& plan);

// Returns the keys branch.*: from which run and point, with which batch and rate.
std::string describe_branch(const RunPlan& plan);

}  // namespace ringtrain
