// The optimizer: its state as flat vectors, its rule per parameter kind, and what it has applied so far.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/experiment.h"
#include "nn/parameters.h"
#include "optim/muon.h"
#include "optim/update_share.h"

namespace ringtrain {

// What an update depends on besides the gradient: a pure function of the run's position, but for AdaScale's averages.
struct UpdateStep {
  double rate = 0;                                      // the learning rate
  double epochs = 0;                                    // finished ones, a fraction within an epoch; for rmsprop_to_sgd
  bool reports_trust = false;                           // UpdateResult shall have the trust ratios
  std::optional<AdaScaleStep> adascale = std::nullopt;  // the rate is multiplied by the gain
};

// alpha_SGD of Akiba et al. 2017, which RMSprop gives way to; e, center and length in epochs:
//
//   e < center                 exp(2 (e - center) / length) / 2
//   e < center + length / 2    1/2 + (e - center) / length
//   else                       1
//
// One curve without a jump, of slope 1 / length on both sides of the center.
double sgd_share(double e, double center, double length);

class Optimizer {
 public:
  // `ranks`: of Muon, whose work they share; all of them make the same calls. `share`: of the elements of `parameters`,
  // what this rank updates.
  Optimizer(const OptimizerConfig& config, const ParameterTable& parameters, Backend& backend, UpdateRanks ranks = {},
            UpdateShare share = {});

  // One update. The gradient is `loss_scale` x the mean over the global batch; behind the
  // trained elements it holds this step's statistics, of which the running ones take `norm_momentum`. Where the
  // gradient is not finite the update is skipped: nothing changes, the optimizer's memory included. The copies of the
  // weights that `program` has follow them.
  UpdateResult update(Vector& weights, const Vector& gradients, const UpdateStep& step, float loss_scale,
                      float norm_momentum, Program* program = nullptr) {
    start(weights, gradients, step, loss_scale, norm_momentum, program);
    return finish();
  }
  // The same in two parts; a device may be given other work between them. Each start() needs its finish() before the
  // next one: only then is it known whether the update was applied.
  void start(Vector& weights, const Vector& gradients, const UpdateStep& step, float loss_scale, float norm_momentum,
             Program* program);
  UpdateResult finish();

  // What later updates need besides state(). Adam's bias correction needs the number of applied updates, momentum
  // correction needs the rate of the last one, schedule-free averaging the last two. Skipped updates do not count.
  struct Applied {
    std::int64_t updates = 0;
    double rate = 0;            // 0: there was none
    double largest_rate = 0;    // of all updates
    double average_weight = 0;  // sum over the updates of largest_rate^2
    bool operator==(const Applied&) const = default;
  };
  const Applied& applied() const { return applied_; }
  void resume(const Applied& applied) { applied_ = applied; }

  // Of state(), as checkpoints have them: torch.optim's, where it has that optimizer.
  static std::vector<std::string> state_names(const OptimizerConfig& config);
  // The same for one tensor: Muon's matrices and what it leaves to another optimizer have other state in the same
  // vectors. "": the tensor has none there.
  static std::vector<std::string> state_names(const OptimizerConfig& config, const Parameter& parameter);
  std::vector<std::unique_ptr<Vector>>& state() { return state_; }
  // Whether the weights that are evaluated are an average (optimizer.schedule_free): update() is then given y, the
  // gradient's place, and the state "z" starts as the weights.
  static bool averages(const OptimizerConfig& config) { return config.schedule_free; }
  // Before the first update: sets the state that does not start at zero.
  void begin(const Vector& weights);
  // The weights that are evaluated, exported and compared: `weights` itself or, with schedule_free, the average x that
  // belongs to it, made anew by each call, with the statistics of `weights`. Waits for a device.
  Vector& evaluated(Vector& weights);
  // The trained tensors in the order of the parameter table, or this rank's parts of them.
  std::span<const UpdateRange> ranges() const { return ranges_; }
  // Squared norms of the gradient that the newest start() was given, one per range: of the reduced gradient as it came,
  // loss scale included, before clipping and decay.
  RangeNorms& gradient_norms() { return *gradient_norms_; }

 private:
  void set_schedule_free(UpdateRule& rule, double rate);
  std::int64_t make_ranges(const ParameterTable& parameters);
  double complete_norms(std::span<double> norms) const;
  void make_muon(const ParameterTable& parameters);
  void gather_directions();

  OptimizerConfig config_;
  Backend& backend_;
  UpdateShare share_;
  std::vector<UpdateRange> ranges_;     // of trained tensors, in the order of the parameter table
  std::vector<std::size_t> tensor_of_;  // of each range: the number of its tensor
  std::size_t tensors_ = 0;             // that are trained
  std::unique_ptr<RangeNorms> gradient_norms_;
  std::int64_t trained_;
  std::vector<std::unique_ptr<Vector>> state_;
  UpdateRanks ranks_;
  MuonLayout layout_;
  std::unique_ptr<Vector> directions_;  // null: there is no matrix of Muon's
  std::unique_ptr<Orthogonalizer> orthogonalizer_;
  std::unique_ptr<Vector> average_;  // [parameters.size()]; null: schedule_free is off
  Applied applied_, started_;        // started_: what applied_ becomes where the newest start() is applied
};

}  // namespace ringtrain
