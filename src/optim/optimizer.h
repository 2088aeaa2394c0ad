// The optimizer: its state as flat vectors, its rule per parameter kind.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "config/experiment.h"
#include "nn/parameters.h"

namespace ringtrain {

class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, const ParameterTable& parameters, Backend& backend);

  // The rate of this update and of the one before (momentum correction needs both).
  struct Rates {
    double now = 0, before = 0;
  };
  // Update number `step` (from 0). The gradient is `loss_scale` x the mean over the global batch; behind the trained
  // elements it holds this step's statistics, of which the running ones take `norm_momentum`. Nothing changes where
  // the gradient is not finite. The copies of the weights that `program` has follow them.
  UpdateResult update(Vector& weights, const Vector& gradients, Rates rates, std::int64_t step, float loss_scale,
                      float norm_momentum, Program* program = nullptr) {
    start(weights, gradients, rates, step, loss_scale, norm_momentum, program);
    return finish();
  }
  // The same in two parts; a device may be given other work between them.
  void start(Vector& weights, const Vector& gradients, Rates rates, std::int64_t step, float loss_scale,
             float norm_momentum, Program* program);
  UpdateResult finish() { return backend_.finish_update(); }

  static std::vector<std::string> state_names(
      const OptimizerConfig& config);  // sgd: momentum; adam: exp_avg, exp_avg_sq
  std::vector<std::unique_ptr<Vector>>& state() { return state_; }
  // The trained tensors, in the order of the parameter table.
  std::span<const UpdateRange> ranges() const { return ranges_; }
  // Squared norms of the gradient that the newest start() was given, one per range: of the reduced gradient as it came,
  // loss scale included, before clipping and decay.
  RangeNorms& gradient_norms() { return *gradient_norms_; }

 private:
  OptimizerConfig config_;
  Backend& backend_;
  std::vector<UpdateRange> ranges_;  // one per trained tensor, in the order of the parameter table
  std::unique_ptr<RangeNorms> gradient_norms_;
  std::int64_t trained_;
  std::vector<std::unique_ptr<Vector>> state_;
};

}  // namespace ringtrain
