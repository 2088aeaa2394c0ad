// Tests the optimizers for large batches, on the CPU and on a device. They are compared with a float64 program
// (tests/golden/make_large_batch.py). Other tests check what is special about each optimizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/random.h"
#include "tests/unit/golden.h"
#include "tests/unit/optimizer_training.h"

namespace ringtrain {
namespace {

using nlohmann::json;

// Runs 20 steps with a loss scale. After its warm-up the rate changes twice. The first change is at a skipped step.
TEST(LargeBatch, OptimizersAreTheFloat64Programs) {
  constexpr float loss_scale = 8;
  const json all = golden("large_batch.json");
  ParameterTable table;
  for (const json& t : all.at("tensors"))
    table.append({t.at("name"), t.at("size"), kind_of(t.at("kind")), InitialValues::constant, 0});
  const std::vector<double> start = values(all.at("start")), given = values(all.at("gradients"));
  const std::vector<double> epochs = all.at("epochs");
  const std::vector<std::size_t> shown = all.at("shown");
  const std::size_t n = start.size(), skipped = all.at("skipped");
  ASSERT_GE(all.at("cases").size(), 18u);
  for (const json& c : all.at("cases"))
    on_cpu_and_device([&](Backend& backend) {
      SCOPED_TRACE(c.at("name").get<std::string>());
      Training training(backend, table, config_of(c));
      training.set(*training.weights, start);
      training.optimizer.begin(*training.weights);
      const std::vector<double> rates = c.at("rates"), expected = values(c.at("weights"));
      const std::vector<double> averaged = c.contains("averaged") ? values(c.at("averaged")) : expected;
      std::size_t row = 0;
      for (std::size_t step = 0; step < rates.size(); ++step) {
        const bool overflows = step == skipped;
        training.set(*training.gradients, std::span(given).subspan(step * n, n),
                     overflows ? std::numeric_limits<double>::infinity() : loss_scale);
        const UpdateStep at{.rate = rates[step], .epochs = epochs[step]};
        EXPECT_EQ(training.update(at, loss_scale).applied, !overflows);
        if (row == shown.size() || step != shown[row]) continue;
        const std::vector<double> actual = training.get(*training.weights);
        const std::vector<double> evaluated = training.get(training.optimizer.evaluated(*training.weights));
        for (std::size_t i = 0; i < n; ++i) {
          const double wanted = expected[row * n + i], average = averaged[row * n + i];
          ASSERT_NEAR(actual[i], wanted, 4e-6 * (1 + std::abs(wanted))) << "step " << step << ", element " << i;
          ASSERT_NEAR(evaluated[i], average, 6e-6 * (1 + std::abs(average))) << "step " << step << ", average " << i;
        }
        ++row;
      }
      EXPECT_EQ(row, shown.size());
    });
}

ParameterTable two_layers() {
  ParameterTable table;
  table.append({"fc.bias", {300}, ParameterKind::bias, InitialValues::constant, 0});
  table.append({"fc.weight", {300, 70}, ParameterKind::weight, InitialValues::constant, 0});
  table.append({"bn.weight", {70}, ParameterKind::norm, InitialValues::constant, 1});
  table.append({"bn.running_mean", {70}, ParameterKind::statistic, InitialValues::constant, 0});
  return table;
}

std::vector<double> drawn_values(const ParameterTable& table, std::uint64_t key) {
  std::int64_t count = 0;
  for (const Parameter& p : table.all()) count += p.count;
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(0.5 * random_normal(key, static_cast<std::uint64_t>(i)));
  return values;
}

double norm(std::span<const double> values) {
  return std::sqrt(
      std::transform_reduce(values.begin(), values.end(), 0.0, std::plus<>(), [](double x) { return x * x; }));
}

// MLPerf's convergence points need LARS in this form. Biases and norms use the rate itself (17 here) without a trust
// ratio and without weight decay.
TEST(LargeBatch, LarsMovesBiasesAndNormsAtTheFullRateWithoutDecay) {
  const ParameterTable table = two_layers();
  on_cpu_and_device([&](Backend& backend) {
    Training training(backend, table,
                      {.kind = "lars", .momentum = 0, .weight_decay = 0.1, .no_decay = {}, .lars_form = "mlperf"});
    const std::vector<double> before = drawn_values(table, 1), gradient = drawn_values(table, 2);
    training.set(*training.weights, before);
    training.set(*training.gradients, gradient);
    training.update({17});
    const std::vector<double> after = training.get(*training.weights);
    const std::size_t biases = 300, weights = 21000, norms = 70;
    const auto of = [&](const std::vector<double>& all) { return std::span(all).subspan(biases, weights); };
    const double ratio = 0.001 * norm(of(before)) / (norm(of(gradient)) + 0.1 * norm(of(before)));
    for (std::size_t i = 0; i < biases + weights + norms; ++i) {
      const bool scaled = i >= biases && i < biases + weights;
      const double step = scaled ? 17 * ratio * (gradient[i] + 0.1 * before[i]) : 17 * gradient[i];
      ASSERT_NEAR(after[i], before[i] - step, 2e-6 * (1 + std::abs(step))) << i;
    }
  });
}

TEST(LargeBatch, TrustRatiosAreReportedWhenAskedForOfAppliedUpdates) {
  const ParameterTable table = two_layers();
  on_cpu_and_device([&](Backend& backend) {
    for (const std::string kind : {"lars", "lamb"}) {
      SCOPED_TRACE(kind);
      Training training(backend, table, {.kind = kind, .weight_decay = 0.1, .trust_coefficient = 0.02});
      const std::vector<double> before = drawn_values(table, 1), gradient = drawn_values(table, 2);
      const auto update = [&](bool reports) {
        const UpdateStep at{.rate = 0, .reports_trust = reports};
        return training.update(at).trust_ratios;
      };
      training.set(*training.weights, before);
      training.set(*training.gradients, gradient);
      const std::vector<float> ratios = update(true);
      ASSERT_EQ(ratios.size(), 3u);
      EXPECT_EQ(ratios[0], 1);
      EXPECT_EQ(ratios[2], 1);
      const auto weights = std::span(before).subspan(300, 21000), slope = std::span(gradient).subspan(300, 21000);
      double expected = 0.02 * norm(weights) / (norm(slope) + 0.1 * norm(weights));
      if (kind == "lamb") {  // Adam's first direction is the sign of the gradient
        std::vector<double> direction;
        for (std::size_t i = 0; i < weights.size(); ++i)
          direction.push_back(slope[i] / (std::abs(slope[i]) + 1e-8) + 0.1 * weights[i]);
        expected = norm(weights) / norm(direction);
      }
      EXPECT_NEAR(ratios[1], expected, 1e-5 * expected);
      EXPECT_TRUE(update(false).empty());
      training.set(*training.gradients, gradient, std::numeric_limits<double>::infinity());
      EXPECT_TRUE(update(true).empty());
    }
    Training sgd(backend, table, {.kind = "sgd"});
    EXPECT_TRUE(sgd.update({.reports_trust = true}).trust_ratios.empty());
  });
}

// Several optimizers with other ranges run one after another on the same device. Each must have its own ratios.
TEST(LargeBatch, OptimizersOfOneDeviceKeepTheirRatiosApart) {
  ParameterTable small;
  small.append({"w", {64}, ParameterKind::weight, InitialValues::constant, 0});
  small.append({"v", {640}, ParameterKind::weight, InitialValues::constant, 0});
  const ParameterTable large = two_layers();
  const auto trained = [&](bool together) {
    cuda::HostDevice device({.order = {cuda::RunOrder::Kind::latest, 0}});
    const auto backend = cuda::make_backend(device, {}), other = cuda::make_backend(device, {});
    Training a(*backend, small, {.kind = "lars", .weight_decay = 0.1}),
        b(together ? *backend : *other, large, {.kind = "lamb", .weight_decay = 0.1});
    for (Training* training : {&a, &b}) training->set(*training->weights, drawn_values(training->table, 3));
    for (std::uint64_t step = 0; step < 3; ++step)
      for (Training* training : {&a, &b}) {
        training->set(*training->gradients, drawn_values(training->table, 10 + step));
        training->update({0.5});
      }
    return std::pair(a.get(*a.weights), b.get(*b.weights));
  };
  EXPECT_EQ(trained(true), trained(false));
}

TEST(LargeBatch, TheMomentsOfLambHaveTheSameBitsOnAnyNumberOfThreads) {
  const ParameterTable table = two_layers();
  const auto trained = [&](int threads) {
    const auto backend = make_cpu_backend(threads);
    Training training(*backend, table, {.kind = "lamb", .weight_decay = 0.1});
    training.set(*training.weights, drawn_values(table, 3));
    for (std::uint64_t step = 0; step < 3; ++step) {
      training.set(*training.gradients, drawn_values(table, 10 + step));
      training.update({0.5});
    }
    return training.get(*training.weights);
  };
  EXPECT_EQ(trained(1), trained(3));
}

TEST(LargeBatch, RmspropGivesWayToSgdOnOneCurveWithoutAJump) {
  EXPECT_NEAR(sgd_share(0, 10, 5), 0.5 * std::exp(-4), 1e-15);
  EXPECT_EQ(sgd_share(10, 10, 5), 0.5);
  EXPECT_EQ(sgd_share(11, 10, 5), 0.7);
  EXPECT_EQ(sgd_share(12.5, 10, 5), 1);
  EXPECT_EQ(sgd_share(100, 10, 5), 1);
  for (double e = 0; e < 20; e += 1e-3) {
    EXPECT_LE(sgd_share(e, 10, 5), sgd_share(e + 1e-3, 10, 5));
    EXPECT_LE(sgd_share(e + 1e-3, 10, 5) - sgd_share(e, 10, 5), 1.01e-3 / 5) << e;
  }
}

// Far before the transition, the learning rate, which is that of SGD, moves no weight.
TEST(LargeBatch, RmspropHasItsOwnRate) {
  const ParameterTable table = two_layers();
  on_cpu_and_device([&](Backend& backend) {
    const auto moved = [&](double rate, double rmsprop_rate) {
      Training training(backend, table,
                        {.kind = "rmsprop_to_sgd", .transition_center = 1000, .transition_rate = rmsprop_rate});
      const auto before = drawn_values(table, 1);
      training.set(*training.weights, before);
      training.set(*training.gradients, drawn_values(table, 2));
      training.update({rate});
      auto change = training.get(*training.weights);
      std::ranges::transform(change, before, change.begin(), std::minus<>());
      return change;
    };
    const auto at_6_4 = moved(6.4, 3e-4), at_0_1 = moved(0.1, 3e-4), twice = moved(6.4, 6e-4);
    double size = 0;
    for (std::size_t i = 0; i < at_6_4.size(); ++i) {
      EXPECT_NEAR(at_6_4[i], at_0_1[i], 1e-6) << i;
      EXPECT_NEAR(twice[i], 2 * at_6_4[i], 1e-6) << i;
      size = std::max(size, std::abs(at_6_4[i]));
    }
    // beta2 is 0.999, so the first step of every element is the rate / sqrt(1 - beta2).
    EXPECT_NEAR(size, 3e-4 / std::sqrt(0.001), 1e-5);
  });
}

// Schedule-free SGD computes the evaluated weights from the trained weights and its state "z". The running statistics
// of batch norm have no such state, so they stay as they are.
TEST(LargeBatch, TheEvaluatedWeightsHaveTheStatisticsOfTheTrainedOnes) {
  const ParameterTable table = two_layers();
  on_cpu_and_device([&](Backend& backend) {
    Training training(backend, table, {.kind = "sgd", .schedule_free = true});
    training.set(*training.weights, drawn_values(table, 1));
    training.optimizer.begin(*training.weights);
    EXPECT_EQ(training.get(training.optimizer.evaluated(*training.weights)), training.get(*training.weights));
    training.set(*training.gradients, drawn_values(table, 2));
    for (int step = 0; step < 3; ++step) training.update({0.5}, 1, 0.1f);
    const std::vector<double> trained = training.get(*training.weights);
    const std::vector<double> evaluated = training.get(training.optimizer.evaluated(*training.weights));
    const std::size_t statistics = 70, behind = trained.size() - statistics;
    for (std::size_t i = 0; i < behind; ++i) ASSERT_NE(evaluated[i], trained[i]) << i;
    for (std::size_t i = behind; i < trained.size(); ++i) ASSERT_EQ(evaluated[i], trained[i]) << i;
    EXPECT_EQ(&Training(backend, table, {.kind = "sgd"}).optimizer.evaluated(*training.weights),
              training.weights.get());
  });
}

TEST(LargeBatch, StateHasTheNamesThatCheckpointsAreReadBy) {
  const auto names = [](const std::string& kind) { return Optimizer::state_names({.kind = kind}); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names("lars"), Names{"momentum"});
  EXPECT_EQ(names("lamb"), (Names{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names("rmsprop"), Names{"square_avg"});
  EXPECT_EQ(Optimizer::state_names({.kind = "sgd", .schedule_free = true}), Names{"z"});
  EXPECT_EQ(Optimizer::state_names({.kind = "adamw", .schedule_free = true}), (Names{"z", "exp_avg_sq"}));
  EXPECT_EQ(names("rmsprop_to_sgd"), (Names{"momentum", "square_avg"}));
}

}  // namespace
}  // namespace ringtrain
