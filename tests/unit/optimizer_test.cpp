#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "tests/unit/one_update.h"

namespace ringtrain {
namespace {

// An optimizer with its weights. The gradients depend on the weights and on the number of the update.
struct Training {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  std::unique_ptr<Vector> weights, gradients;
  Optimizer optimizer;

  Training(const OptimizerConfig& config, const ParameterTable& table)
      : weights(backend->make_vector(table.size())),
        gradients(backend->make_vector(table.size())),
        optimizer(config, table, *backend) {
    std::vector<float> flat(static_cast<std::size_t>(table.size()));
    initialize(table, 3, flat);
    backend->copy_from_host(flat, *weights, 0);
  }
  void update(std::int64_t number, double rate) {
    for (std::int64_t i = 0; i < weights->size(); ++i)
      gradients->data()[i] =
          0.3f * weights->data()[i] +
          0.1f * static_cast<float>(random_normal(9, static_cast<std::uint64_t>(number * 100000 + i)));
    EXPECT_TRUE(one_update(optimizer, *weights, *gradients, {rate}, 1, 0).applied);
  }
  // Makes an update whose gradient has overflowed, as it can in fp16. The optimizer skips it.
  void overflow(double rate) {
    std::fill_n(gradients->data(), gradients->size(), std::numeric_limits<float>::infinity());
    EXPECT_FALSE(one_update(optimizer, *weights, *gradients, {rate}, 1, 0).applied);
  }
  std::vector<double> values() const { return {weights->data(), weights->data() + weights->size()}; }
};

// Returns the weights after 12 updates. With `rate_changes`, the rate changes twice.
std::vector<double> trained(const OptimizerConfig& config, const ParameterTable& table, bool rate_changes) {
  Training training(config, table);
  for (std::int64_t step = 0; step < 12; ++step)
    training.update(step, !rate_changes || step < 4 ? 0.02 : step < 8 ? 0.2 : 0.05);
  return training.values();
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

ParameterTable one_layer() {
  ParameterTable table;
  table.append({"w", {40, 50}, ParameterKind::weight, InitialValues::normal, 0.1});
  table.append({"gamma", {50}, ParameterKind::norm, InitialValues::constant, 1});
  table.append({"mean", {50}, ParameterKind::statistic, InitialValues::constant, 0.5});
  return table;
}

// Goyal et al. 2017, remark 2: the form with the rate inside the buffer needs the correction, but only when the rate
// changes.
TEST(Optimizer, MomentumCorrectionMakesTheRateInsideTheBufferEqualToTheRateOutside) {
  const ParameterTable table = one_layer();
  for (const bool nesterov : {false, true}) {
    OptimizerConfig outside;
    outside.kind = "sgd";
    outside.nesterov = nesterov;
    outside.weight_decay = 1e-3;
    OptimizerConfig inside = outside;
    inside.rate_in_momentum = true;
    OptimizerConfig corrected = inside;
    corrected.momentum_correction = true;
    EXPECT_LT(largest_difference(trained(inside, table, false), trained(outside, table, false)), 1e-5);
    EXPECT_LT(largest_difference(trained(corrected, table, true), trained(outside, table, true)), 1e-5);
    EXPECT_GT(largest_difference(trained(inside, table, true), trained(outside, table, true)), 1e-2);
  }
}

OptimizerConfig corrected_momentum() {
  OptimizerConfig config;
  config.kind = "sgd";
  config.rate_in_momentum = config.momentum_correction = true;
  return config;
}

// The update at which the rate changes overflows. The next update is corrected by the ratio to the last applied rate.
TEST(Optimizer, ASkippedUpdateLeavesNoTraceInMomentumCorrection) {
  const ParameterTable table = one_layer();
  Training skipping(corrected_momentum(), table), whole(corrected_momentum(), table);
  for (Training* training : {&skipping, &whole}) {
    training->update(0, 0.02);
    training->update(1, 0.02);
    if (training == &skipping) training->overflow(0.2);
    training->update(2, 0.2);
    training->update(3, 0.2);
  }
  EXPECT_EQ(skipping.values(), whole.values());
  EXPECT_EQ(skipping.optimizer.applied().updates, 4);
  EXPECT_EQ(skipping.optimizer.applied().rate, 0.2);
}

// t counts applied updates only. This is as in torch.optim, which never sees a step that its GradScaler has skipped.
TEST(Optimizer, AdamsBiasCorrectionDoesNotCountSkippedUpdates) {
  ParameterTable table;
  table.append({"w", {1}, ParameterKind::weight, InitialValues::constant, 0.5});
  for (const std::string kind : {"adam", "adamw"}) {
    OptimizerConfig config;
    config.kind = kind;
    Training training(config, table);
    training.overflow(0.1);
    double w = 0.5, m = 0, v = 0;
    for (int t = 1; t <= 4; ++t) {
      const double g = 0.25 * t;
      std::fill_n(training.gradients->data(), table.size(), static_cast<float>(g));
      one_update(training.optimizer, *training.weights, *training.gradients, {0.1}, 1, 0);
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      w -= 0.1 / (1 - std::pow(0.9, t)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(0.999, t)) + 1e-8);
      EXPECT_NEAR(training.weights->data()[0], w, 1e-5) << kind << ", update " << t;
      if (t % 2 == 0) training.overflow(0.1);
    }
  }
}

// A run that is resumed with another base rate continues like a run whose rate changes at that step.
TEST(Optimizer, AResumedOptimizerCorrectsMomentumByTheRateThatWasApplied) {
  const ParameterTable table = one_layer();
  Training whole(corrected_momentum(), table), resumed(corrected_momentum(), table);
  for (std::int64_t step = 0; step < 3; ++step) whole.update(step, 0.02);
  std::copy_n(whole.weights->data(), table.size(), resumed.weights->data());
  std::copy_n(whole.optimizer.state()[0]->data(), table.trained(), resumed.optimizer.state()[0]->data());
  resumed.optimizer.resume(whole.optimizer.applied());
  for (Training* training : {&whole, &resumed}) training->update(3, 0.1);
  EXPECT_EQ(resumed.values(), whole.values());
}

TEST(Optimizer, HasARangeForEveryTrainedTensorWithItsKindAndDecayAndWithoutPadding) {
  const ParameterTable table = one_layer();
  OptimizerConfig config;
  config.kind = "sgd";
  config.weight_decay = 0.5;
  config.no_decay = {"bias"};  // the same decay for both
  Training training(config, table);
  const auto ranges = training.optimizer.ranges();
  ASSERT_EQ(ranges.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Parameter& p = table.all()[i];
    EXPECT_EQ(ranges[i].begin, p.offset);
    EXPECT_EQ(ranges[i].end, p.offset + p.count);
    EXPECT_EQ(ranges[i].kind, p.kind);
    EXPECT_EQ(ranges[i].weight_decay, 0.5f);
  }
  training.update(0, 0.1);
  const auto norms = training.optimizer.gradient_norms();
  for (std::size_t i = 0; i < 2; ++i) {
    double sum = 0;
    for (std::int64_t at = ranges[i].begin; at < ranges[i].end; ++at)
      sum += std::pow(static_cast<double>(training.gradients->data()[at]), 2);
    EXPECT_NEAR(norms[i], sum, 1e-12 * sum);
  }
}

TEST(Optimizer, LeavesTheRunningStatisticsToTheTrainer) {
  const ParameterTable table = one_layer();
  ASSERT_LT(table.trained(), table.size());
  OptimizerConfig sgd;
  sgd.kind = "sgd";
  sgd.weight_decay = 0.1;
  sgd.no_decay = {};
  const std::vector<double> weights = trained(sgd, table, false);
  for (const Parameter& p : table.all())
    for (std::int64_t i = 0; i < p.count && p.kind == ParameterKind::statistic; ++i)
      ASSERT_EQ(weights[static_cast<std::size_t>(p.offset + i)], p.scale) << p.name;
}

}  // namespace
}  // namespace ringtrain
