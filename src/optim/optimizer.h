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
  // Of the elements that this rank updates: of a whole model [parameters.trained()].
  std::vector<std::unique_ptr<Vector>>& state() { return state_; }
  // Elements [begin, begin + size) of the flat vector, of state vector `index`. read_state() is collective where ranks
  // share the elements, and all of them get the values; write_state() takes what is this rank's.
  void read_state(std::size_t index, std::int64_t begin, std::span<float> values);
  void write_state(std::size_t index, std::int64_t begin, std::span<const float> values);
  // This rank has state of its own elements only; those of others come by UpdateShare::gather.
  bool is_shared() const { return share_.gather != nullptr; }
  // The length of a state vector on a rank that updates `own`.
  static std::int64_t state_elements(const ParameterTable& parameters,
                                     const std::optional<std::vector<ElementRange>>& own);
  // Whether the weights that are evaluated are an average (optimizer.schedule_free): update() is then given y, the
  // gradient's place, and the state "z" starts as the weights.
  static bool averages(const OptimizerConfig& config) { return config.schedule_free; }
  // Before the first update: sets the state that does not start at zero.
  void begin(const Vector& weights);
  // The weights that are evaluated, exported and compared: `weights` itself or, with schedule_free, the average x that
  // belongs to it, made anew by each call, with the statistics of `weights`. Waits for a device. Collective where ranks
  // share the elements.
  Vector& evaluated(Vector& weights);
  // The trained tensors in the order of the parameter table.
  std::span<const UpdateRange> ranges() const { return tensors_; }
  // Squared norms of the gradient that the newest start() was given, one per range: of the reduced gradient as it came,
  // loss scale included, before clipping and decay. After finish(); fetch_norms() before it begins their way to the
  // host.
  std::vector<double> gradient_norms();
  void fetch_norms() {
    if (gradient_norms_) gradient_norms_->fetch();
  }

 private:
  void set_schedule_free(UpdateRule& rule, double rate);
  void make_ranges(const ParameterTable& parameters);
  template <class Action>
  void for_own_parts(std::int64_t begin, std::int64_t end, const Action& action) const;
  double complete_norms(std::span<double> norms);
  std::vector<float> ratios_of_tensors(const std::vector<float>& of_parts) const;
  void make_muon(const ParameterTable& parameters);
  void gather_directions();

  OptimizerConfig config_;
  Backend& backend_;
  UpdateShare share_;
  std::vector<UpdateRange> tensors_;            // that are trained, in the order of the parameter table
  std::vector<UpdateRange> parts_;              // of them, that this rank updates
  std::vector<std::size_t> tensor_of_;          // of each part: the number of its tensor
  std::unique_ptr<RangeNorms> gradient_norms_;  // of the parts; null: there is none
  std::vector<double> tensor_norms_;            // squared, of the newest update, where ranks share the elements
  std::int64_t trained_;
  std::vector<std::unique_ptr<Vector>> state_;
  UpdateRanks ranks_;
  MuonLayout layout_;
  std::unique_ptr<Vector> directions_;  // null: there is no matrix of Muon's
  std::unique_ptr<Orthogonalizer> orthogonalizer_;
  std::unique_ptr<Vector> average_;  // [parameters.size()]; null: schedule_free is off
  bool reports_trust_ = false;       // the newest start()
  Applied applied_, started_;        // started_: what applied_ becomes where the newest start() is applied
};

}  // namespace ringtrain
