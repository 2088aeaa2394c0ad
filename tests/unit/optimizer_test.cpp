#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace ringtrain {
namespace {

// Weights after `steps` updates with gradients that depend on weights and step, and a rate that changes twice.
std::vector<double> trained(OptimizerConfig config, const ParameterTable& table, bool rate_changes) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const auto weights = backend->make_vector(table.size()), gradients = backend->make_vector(table.size());
  std::vector<float> flat(static_cast<std::size_t>(table.size()));
  initialize(table, 3, flat);
  backend->copy_from_host(flat, *weights, 0);
  Optimizer optimizer(config, table, *backend);
  const auto rate = [&](std::int64_t step) { return !rate_changes || step < 4 ? 0.02 : step < 8 ? 0.2 : 0.05; };
  for (std::int64_t step = 0; step < 12; ++step) {
    for (std::int64_t i = 0; i < table.size(); ++i)
      gradients->data()[i] = 0.3f * weights->data()[i] +
                             0.1f * static_cast<float>(random_normal(9, static_cast<std::uint64_t>(step * 100000 + i)));
    optimizer.update(*weights, *gradients, {rate(step), rate(std::max<std::int64_t>(0, step - 1))}, step, 1, 0);
  }
  return {weights->data(), weights->data() + table.size()};
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

// Goyal et al. 2017, remark 2: the form with the rate inside the buffer needs the correction, and only when the rate
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

TEST(Optimizer, LeavesTheRunningStatisticsToTheTrainer) {
  const ParameterTable table = one_layer();
  ASSERT_LT(table.trained(), table.size());
  OptimizerConfig sgd;
  sgd.kind = "sgd";
  sgd.weight_decay = 0.1;
  sgd.decay_norm_and_bias = true;
  const std::vector<double> weights = trained(sgd, table, false);
  for (const Parameter& p : table.all())
    for (std::int64_t i = 0; i < p.count && p.kind == ParameterKind::statistic; ++i)
      ASSERT_EQ(weights[static_cast<std::size_t>(p.offset + i)], p.scale) << p.name;
}

}  // namespace
}  // namespace ringtrain
