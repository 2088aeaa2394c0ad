// Compares AdaScale SGD with the algorithm of its paper. The test has its own implementation in double precision, which
// shares no code with the trainer.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/cuda/backend.h"
#include "base/random.h"
#include "optim/noise_scale.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/one_update.h"

namespace ringtrain {
namespace {

constexpr int elements = 100;
using Gradients = std::vector<std::vector<double>>;  // one gradient for each base batch

// The noise shrinks from step to step, so the gain falls.
Gradients gradients_of(int step, int count) {
  Gradients g(static_cast<std::size_t>(count), std::vector<double>(elements));
  for (std::size_t k = 0; k < g.size(); ++k)
    for (std::size_t i = 0; i < elements; ++i) {
      const auto number = (static_cast<std::uint64_t>(step) * 64 + k) * elements + i;
      const double value = 0.02 * static_cast<double>(i % 7) - 0.03 + 0.5 / (1 + step) * random_normal(3, number);
      g[k][i] = static_cast<double>(static_cast<float>(value));
    }
  return g;
}

double squared(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return sum;
}

std::vector<double> mean_of(const Gradients& all) {
  std::vector<double> mean(elements, 0.0);
  for (const auto& g : all)
    for (std::size_t i = 0; i < elements; ++i) mean[i] += g[i] / static_cast<double>(all.size());
  return mean;
}

// Algorithm 1 of the paper with momentum. Each call is one step.
struct Paper {
  int S;
  double momentum = 0.9, theta = std::max(1 - S / 1000.0, 0.0);
  double sigma2 = 0, mu2 = 0, tau = 0, r = 1;
  int t = 0;
  std::vector<double> w = std::vector<double>(elements, 1.0), u = std::vector<double>(elements, 0.0);

  void step(const Gradients& g, double (*lr)(double)) {
    const std::vector<double> mean = mean_of(g);
    double of_each = 0;
    for (const auto& one : g) of_each += squared(one);
    double s = of_each / (S - 1) - S * squared(mean) / (S - 1), m = squared(mean) - s / S;
    s = std::max(s, 1e-6);
    m = std::max(m, 0.0);
    ++t;
    const bool moving = t >= 1 / (1 - theta);
    sigma2 = moving ? theta * sigma2 + (1 - theta) * s : ((t - 1) * sigma2 + s) / t;
    mu2 = moving ? theta * mu2 + (1 - theta) * m : ((t - 1) * mu2 + m) / t;
    r = (sigma2 + mu2) / (sigma2 / S + mu2);
    for (std::size_t i = 0; i < elements; ++i) {
      u[i] = momentum * u[i] + mean[i];
      w[i] -= r * lr(std::floor(tau)) * u[i];
    }
    tau += r;
  }
};

double falls_at_20(double step) {
  return step < 20 ? 0.1 : 0.02;
}

// Returns the vector as the trainer's ranks leave it: the mean gradient times the loss scale. The element after the
// gradients is the sum of the squared norms of what each base batch has added to them (AdaScaleStep::small_norms).
std::vector<float> reduced(const Gradients& g, std::size_t padded, float scale) {
  std::vector<float> flat(padded + 64);
  double norms = 0;
  const std::vector<double> mean = mean_of(g);
  for (std::size_t i = 0; i < elements; ++i) flat[i] = static_cast<float>(mean[i]) * scale;
  for (const auto& one : g) norms += squared(one) / static_cast<double>(g.size() * g.size());
  flat[padded] = static_cast<float>(norms * scale * scale);
  return flat;
}

std::vector<std::unique_ptr<Backend>> backends(cuda::HostDevice& device) {
  std::vector<std::unique_ptr<Backend>> both;
  both.push_back(make_cpu_backend(2));
  both.push_back(cuda::make_backend(device, {}));
  return both;
}

TEST(AdaScale, FollowsThePapersAlgorithmThroughARateChangeASkippedStepAndMovingAverages) {
  cuda::HostDevice device;
  for (const int S : {8, 200})  // with 200, the plain means become moving averages at step 5
    for (const auto& backend : backends(device)) {
      ParameterTable table;
      table.append({.name = "w", .shape = {elements}});
      OptimizerConfig config;
      config.kind = "sgd";
      Optimizer optimizer(config, table, *backend);
      const auto padded = static_cast<std::size_t>(table.size());
      const auto weights = backend->make_vector(table.size()), gradients = backend->make_vector(table.size() + 64);
      std::vector<float> w(padded);
      std::fill_n(w.begin(), elements, 1.0f);
      backend->copy_from_host(w, *weights, 0);

      Paper paper{S};
      AdaScale adascale(S, 4 * S, 4);
      float scale = 1024;
      for (int step = 0; step < 20; ++step) {
        const Gradients g = gradients_of(step, S);
        std::vector<float> flat = reduced(g, padded, scale);
        const bool skipped = step == 7;
        if (skipped) flat[3] = flat[padded] = std::numeric_limits<float>::infinity();
        backend->copy_from_host(flat, *gradients, 0);
        const UpdateStep update{.rate = falls_at_20(std::floor(adascale.steps())),
                                .adascale = adascale.next(table.size())};
        const UpdateResult result = one_update(optimizer, *weights, *gradients, update, scale, 0.1f);
        adascale.add(result);
        ASSERT_EQ(result.applied, !skipped);
        if (skipped) {
          scale /= 2;
          continue;
        }
        paper.step(g, falls_at_20);
        EXPECT_NEAR(result.gain, paper.r, 1e-5 * paper.r) << S << " " << step;
        EXPECT_NEAR(adascale.steps(), paper.tau, 1e-5 * paper.tau);
        backend->copy_to_host(*weights, 0, w);
        for (std::size_t i = 0; i < elements; ++i) ASSERT_NEAR(w[i], paper.w[i], 2e-5) << S << " " << step << " " << i;
      }
      EXPECT_GT(paper.tau, 20) << "the rate has fallen";
      EXPECT_LT(paper.r, 0.9 * S);
    }
}

TEST(AdaScale, TheGainLiesBetweenOneAndSAndIsTheEfficiencyTimesS) {
  for (const double times : {1.5, 4.0, 64.0, 5000.0})
    for (const double variance : {0.0, 1e-6, 0.1, 1e9})
      for (const double gradient : {0.0, 1e-9, 1.0, 1e9}) {
        if (variance + gradient == 0) continue;
        const double r = adascale_gain({variance, gradient, 1}, times);
        EXPECT_GE(r, 1);
        EXPECT_LE(r, times);
        if (gradient > 0) {
          EXPECT_NEAR(r, gain(32 * variance / gradient, 32, times), 1e-9 * times);
        }
      }
  EXPECT_EQ(adascale_gain({}, 8), 1) << "no step yet";
}

// S does not have to be an integer, and small batches do not have to be base batches.
TEST(AdaScale, AveragesAreTheUnbiasedEstimates) {
  const AdaScaleStep step{.times = 2.5, .batch = 40, .small_batch = 4, .averages = {}};
  const NoiseEstimate e =
      estimate_noise({.batch = 40, .small_batch = 4, .squared_norm = 3, .small_squared_norm = 10 * 0.9});
  const AdaScaleAverages a = with_step(step, 3, 0.9);
  EXPECT_DOUBLE_EQ(a.variance, e.trace / 16);
  EXPECT_DOUBLE_EQ(a.gradient, e.gradient);
  const AdaScaleAverages clipped = with_step(step, 3, 0.2);
  EXPECT_EQ(clipped.variance, 1e-6);
  EXPECT_EQ(with_step(step, 3, 30).gradient, 0);
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(with_step(step, 3, infinite).steps, 0) << "what is not finite is no measurement";
}

}  // namespace
}  // namespace ringtrain
