// The training step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/pages.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "data/loader.h"
#include "optim/adascale.h"
#include "optim/loss_scale.h"
#include "optim/noise_follower.h"
#include "optim/noise_groups.h"
#include "optim/noise_scale.h"
#include "optim/optimizer.h"
#include "parallel/pass_order.h"
#include "parallel/stage_ranks.h"
#include "parallel/synchronizer.h"
#include "run/plan.h"
#include "run/step_times.h"
#include "train/gradient_passes.h"
#include "train/replica_check.h"

namespace ringtrain {

// What one rank would like to happen after this step. Summed over ranks with the gradients, so all act at once: the
// non-blocking sum of the step's counters carries it, no collective of its own is waited for. A signal that falls into
// step k is read before step k + 1 and acted on after it, on all ranks.
struct Requests {
  double signal = 0;  // this rank was asked to stop
  double save = 0;    // rank 0's clock says: checkpoint
  double stop = 0;    // rank 0's clock says: time is up
  double fail = 0;    // rank 0 could not write its last checkpoint
  double check = 0;   // rank 0's clock says: compare the copies in the next step
};

// Of a step whose gradient was finite.
struct NoiseReport {
  NoiseEstimate estimate;  // by this step alone
  NoiseRatio scale;        // of the averages, in samples
  double targets_per_sample = 1;
  std::string change;                                       // NoiseScale::change()
  std::vector<std::pair<std::string, double>> groups = {};  // noise.groups: kind; the scale of each
};

// Of an update that a parameter server has applied.
struct ServedReport {
  std::int64_t update = 0;                  // whose samples it has taken
  std::int64_t worker = 0, version = 0;     // who computed it, from the weights after how many updates
  std::int64_t staleness = 0;               // updates that were applied in between
  std::int64_t gradients = 1, dropped = 0;  // of how many workers it is made; those that came too late
  StepTimes times;                          // of the workers' steps, on average; communication: for weights
};

struct StepReport {
  Position position;                   // after this step
  std::optional<Position> before;      // this step; none: the position of the report before this one
  bool met = true;                     // all ranks are here
  std::optional<ServedReport> served;  // on server 0
  std::int64_t samples = 0;            // of this step
  double loss = 0;                     // mean over the counted targets of the global batch
  double accuracy = 0, accuracy5 = 0;  // top-1; top-5 of images
  double learning_rate = 0;            // that was used: the schedule's, times the gain
  std::optional<double> gain;          // AdaScale's; none without it, or where the step was skipped
  double scale_invariant_steps = 0;    // AdaScale's, with this step
  double gradient_norm = 0;            // before clipping and decay
  float loss_scale = 1;                // of fp16
  bool applied = true;                 // false: the gradient overflowed fp16, the weights are as before
  Requests requests;                   // of all ranks
  std::vector<float> trust_ratios;     // one per range of the optimizer, where they are recorded at this step
  std::optional<NoiseReport> noise;    // where this step measured the noise scale
  StepTimes times;                     // of this rank
  PassTimes passes;                    // of a pipeline: the mean over its ranks
};

class StepClock;
class StepCounters;

class Trainer {
 public:
  // Takes the memory. Weights and optimizer state are zero until they are loaded; start_at() then says where the run
  // goes on.
  // `communicator`: over all ranks. `stages`: of a pipeline, where the plan has one.
  Trainer(const RunPlan& plan, Backend& backend, Communicator& communicator, Watchdog& watchdog, Loader& loader,
          std::optional<UpdateShare> share = std::nullopt, StageRanks* stages = nullptr);

  // One update. Throws Diverged, before any weight has changed, when loss or gradient are not finite (fp16: when no
  // loss scale makes the gradient finite).
  StepReport step(const Requests& requests);

  // The two halves of a step whose gradient and update are made by different ranks. The mean gradient of this rank's
  // rows of the step that begins at `position`, by all its targets, to gradients(); returns the sums of its passes.
  // `targets`: that count, at least 1.
  LossSums compute(const Position& position, StepTimes& times, std::int64_t& targets);
  // One update with what lies in gradients(), at the rate of this position times `rate_factor`. Throws as step().
  StepReport apply(const LossSums& sums, std::int64_t targets, double rate_factor);
  void stand_at(const Position& position) { position_ = position; }  // another rank has made the updates

  const Position& position() const { return position_; }
  std::int64_t batch() const { return course_.batch_at(position_); }  // of the next step
  // Before the first step: continues there with what now stands in weights(), optimizer() and carried_state(). `batch`:
  // where it follows the noise scale, the one that it has grown to; 0: the first.
  void start_at(const Position& position, std::int64_t batch = 0);

  Backend& backend() { return backend_; }
  // What weights(), the optimizer's state and the carried state are of.
  const ModelPart& part() const { return part_; }
  LossScale& loss_scale() { return loss_scale_; }
  Vector& weights() { return *weights_; }
  Vector& gradients() { return *gradients_; }
  // What is evaluated and exported; see Optimizer::evaluated().
  Vector& evaluated_weights() { return optimizer_.evaluated(*weights_); }
  Optimizer& optimizer() { return optimizer_; }
  NoiseScale& noise_scale() { return noise_scale_; }
  std::optional<NoiseGroups>& noise_groups() { return noise_groups_; }  // none: noise.groups is off
  std::optional<AdaScale>& adascale() { return adascale_; }             // none: it is off
  NoiseFollower& noise_follower() { return noise_follower_; }
  // What other ranks may have the same bits of, by name.
  std::vector<ReplicatedTensor> replicated() {
    return replicated_tensors(part_.parameters, *weights_, optimizer_, plan_.experiment.optimizer);
  }
  // Before the first step: from now on ranks compare their copies (communication.check_every_steps). `known_good`: see
  // ReplicaCheck.
  void compare_copies(std::function<std::string()> known_good);
  // Of other groups of ranks, which hold `tensors` alike. After compare_copies().
  std::unique_ptr<ReplicaCheck> make_comparison(std::vector<ReplicatedTensor> tensors, ReplicaGroups groups) {
    return std::make_unique<ReplicaCheck>(backend_, communicator_, std::move(tensors), std::move(groups), known_good_);
  }
  // Whether they do, and how long the host took for the newest checksum.
  bool compares_copies() const { return replicas_ != nullptr; }
  double comparison_seconds() const { return replicas_ ? replicas_->seconds() : 0; }
  // Throws Error where they differ now. Collective.
  void check_copies();
  // [rows of this rank, layers of its part, (h, c), hidden]
  std::span<float> carried_state() { return carried_state_; }

 private:
  void sleep_if_slow(StepClock& clock, StepTimes& times);
  void stage_next();
  // `position`: where the pass's step begins.
  void get_input(StepClock& clock, StepTimes& times, const Position& position);
  void forward(StepClock& clock, StepTimes& times, const Position& position);
  bool keeps_reading(const Position& next);
  std::int64_t global_targets(const MicroBatch& first, const Position& position);
  BatchPlan batch_at(const Position& position) const { return resized(plan_.batch, course_.batch_at(position)); }
  Position next_position() const { return course_.after(position_); }
  double scheduled_rate() const;
  PassContext pass_context(const MicroBatch& batch, const Position& position);
  bool may_run_ahead() const;
  bool measures_noise(const Position& next) const;
  bool may_change_batch(const Position& next) const;
  void follow_noise(const StepReport& report);
  void start_update(StepReport& report);
  void share_weights();
  void note_gain(StepReport& report, const UpdateResult& result);
  void finish_update(StepReport& report, const StepCounters& counters, std::int64_t targets);
  StepCounters counters_of(const LossSums& sums, const Requests& requests, const PassTimes& passes, bool measures,
                           bool compares);
  bool compares_now() const;
  void flip_bit();
  NoiseReport measured_noise(const StepReport& report, const StepCounters& counters, std::int64_t targets);
  std::vector<std::pair<std::string, double>> scales_of_kinds() const;
  void measure_groups(const NoiseScale::Step& whole, double small_batch, const StepCounters& counters, double scale);

  const RunPlan& plan_;
  ModelPart part_;
  Backend& backend_;
  Watchdog& watchdog_;
  Loader& loader_;
  Communicator& communicator_;
  StageRanks* stages_;
  std::unique_ptr<Vector> weights_, gradients_;
  std::unique_ptr<Synchronizer> synchronizer_;
  Optimizer optimizer_;
  LossScale loss_scale_;
  std::unique_ptr<GroupRanks> group_ranks_;  // that share batch norm's workers; null: this rank has them whole
  std::unique_ptr<Program> program_;
  std::unique_ptr<PassOrder> order_;
  NoiseScale noise_scale_;
  std::optional<NoiseGroups> noise_groups_;
  GradientPasses passes_;
  std::optional<AdaScale> adascale_;
  NoiseFollower noise_follower_;
  BackwardHooks overlap_;  // launches buckets while the last micro-step's backward pass runs
  BatchCourse course_;
  PageVector<float> carried_state_;
  Pinned pinned_;
  std::uint64_t dropout_key_;
  std::function<std::string()> known_good_;
  std::unique_ptr<ReplicaCheck> replicas_;  // null: nothing is compared
  bool compares_next_ = false;              // rank 0's clock asked for it
  double slow_seconds_;                     // that this rank sleeps in each step (test.slow_rank)
  std::optional<MicroBatch> staged_;        // what the program's next forward pass takes
  bool ahead_ = false;                      // the first pass of the next step has begun
  std::int64_t staged_of_step_ = 0;         // micro-batches of this step that have been staged
  std::int64_t targets_ = 0;                // of the global batch that the newest pass belongs to
  bool alone_ = false;                      // compute(): this rank's gradient is a mean by itself
  double rate_factor_ = 1;                  // of apply()
  Position position_;
};

}  // namespace ringtrain
