// The optimizer: its state as flat vectors, its rule per parameter kind.
#pragma once

#include <cstdint>
#include <memory>
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
  // Update number `step` (from 0) of the trained elements. `gradient_norm` (before clipping) decides on clipping to
  // clip_norm (Pascanu et al. 2013). The gradient is the mean over the global batch.
  void update(Vector& weights, const Vector& gradients, Rates rates, double gradient_norm, std::int64_t step);

  static std::vector<std::string> state_names(
      const OptimizerConfig& config);  // sgd: momentum; adam: exp_avg, exp_avg_sq
  std::vector<std::unique_ptr<Vector>>& state() { return state_; }

 private:
  struct Range {
    std::int64_t begin, end;
    bool decay;
  };
  OptimizerConfig config_;
  Backend& backend_;
  std::vector<Range> ranges_;  // neighbours with the same decay are one range
  std::vector<std::unique_ptr<Vector>> state_;
};

}  // namespace ringtrain
