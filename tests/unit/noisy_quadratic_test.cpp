// Trains a noisy quadratic (Zhang et al. 2019, "Which algorithmic choices matter at which batch sizes? Insights from a
// noisy quadratic model", arXiv:1907.04164, section 3). The loss of a weight is h w^2 / 2, and the gradient of a batch
// of B samples is h w + n, where n is normal with variance c / B. Its expected course has a closed form, with which the
// optimizer, its half-lives, the average of the weights and the noise scale are compared.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/random.h"
#include "optim/noise_scale.h"
#include "tests/unit/optimizer_training.h"

namespace ringtrain {
namespace {

constexpr std::int64_t copies = 10000;  // weights of each curvature. Their mean square has a deviation of 1.4 %.
constexpr std::array<double, 3> curvatures = {1, 0.2, 0.02};
struct Recipe {
  std::string name;
  OptimizerConfig optimizer;
  double rate = 0, batch = 0;
  int steps = 0;
  int small_batches = 1;  // in each batch
};

// The state of one weight: the weight, the momentum, and the average of the weights.
using WeightState = std::array<double, 3>;
using Matrix = std::array<WeightState, 3>;

// The exact mean and covariance of the state after each step. A step is x' = transition x + noise gain.
class ClosedForm {
 public:
  ClosedForm(const Recipe& r, double curvature, double average_half_life) {
    const double m = r.optimizer.half_life.momentum > 0 ? std::exp2(-r.batch / r.optimizer.half_life.momentum)
                                                        : r.optimizer.momentum;
    const double rho = std::exp2(-r.batch / average_half_life), rate = r.rate;
    // u' = m u + g, w' = w - rate u', or w' = w - rate (g + m u') with Nesterov's momentum.
    const double of_g = r.optimizer.nesterov ? 1 + m : 1, of_u = r.optimizer.nesterov ? m * m : m;
    transition_ = {WeightState{1 - rate * of_g * curvature, -rate * of_u, 0}, WeightState{curvature, m, 0},
                   WeightState{0, 0, rho}};
    gain_ = {-rate * of_g, 1, 0};
    for (std::size_t i = 0; i < 3; ++i) transition_[2][i] += (1 - rho) * transition_[0][i];
    gain_[2] = (1 - rho) * gain_[0];
    variance_ = curvature / r.batch;  // c = h, as in the paper
  }

  void step() {
    WeightState mean{};
    Matrix product{}, covariance{};
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t k = 0; k < 3; ++k) {
        mean[i] += transition_[i][k] * mean_[k];
        for (std::size_t j = 0; j < 3; ++j) product[i][j] += transition_[i][k] * covariance_[k][j];
      }
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < 3; ++j) {
        covariance[i][j] = gain_[i] * gain_[j] * variance_;
        for (std::size_t k = 0; k < 3; ++k) covariance[i][j] += product[i][k] * transition_[j][k];
      }
    mean_ = mean;
    covariance_ = covariance;
  }

  // The expected square of the weight (0) or of the average (2).
  double square(std::size_t i) const { return mean_[i] * mean_[i] + covariance_[i][i]; }

 private:
  Matrix transition_{}, covariance_{};
  WeightState gain_{}, mean_ = {1, 0, 1};  // every weight starts at 1
  double variance_ = 0;
};

struct Course {
  std::vector<std::array<double, 3>> weights, averages;  // mean squares of each curvature, after each step
  double noise_trace = 0, noise_gradient = 0;            // NoiseScale's, measured at the first weights
};

Course train(Backend& backend, const Recipe& recipe, double average_half_life) {
  ParameterTable table;
  for (std::size_t i = 0; i < curvatures.size(); ++i)
    table.append({cat("fc", i, ".weight"), {copies}, ParameterKind::weight, InitialValues::constant, 1});
  Training training(backend, table, recipe.optimizer, {}, {.half_life = average_half_life, .evaluate = true});
  std::vector<double> weights(curvatures.size() * copies, 1), gradients(weights.size());
  training.set(*training.weights, weights);
  training.optimizer.begin(*training.weights);
  const auto mean_squares = [](const std::vector<double>& values) {
    std::array<double, 3> means{};
    for (std::size_t i = 0; i < values.size(); ++i) means[i / copies] += values[i] * values[i] / copies;
    return means;
  };
  Course course;
  for (int step = 0; step < recipe.steps; ++step) {
    NoiseMeasurement noise{.batch = std::llround(recipe.batch), .small_batch = recipe.batch / recipe.small_batches};
    const auto parts = static_cast<std::uint64_t>(recipe.small_batches);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double curvature = curvatures[i / copies];
      const double deviation = std::sqrt(curvature / noise.small_batch);
      gradients[i] = 0;
      for (std::uint64_t s = 0; s < parts; ++s) {
        const double g =
            curvature * weights[i] + deviation * random_normal(100 + static_cast<std::uint64_t>(step), i * parts + s);
        gradients[i] += g / recipe.small_batches;
        noise.small_squared_norm += g * g / recipe.small_batches;
      }
      noise.squared_norm += gradients[i] * gradients[i];
    }
    if (step == 0 && parts > 1) {
      const NoiseEstimate estimate = estimate_noise(noise);
      course.noise_trace = estimate.trace;
      course.noise_gradient = estimate.gradient;
    }
    training.set(*training.gradients, gradients);
    training.update({.rate = recipe.rate, .samples = recipe.batch});
    weights = training.get(*training.weights);
    course.weights.push_back(mean_squares(weights));
    course.averages.push_back(mean_squares(training.get(training.optimizer.evaluated(*training.weights))));
  }
  return course;
}

OptimizerConfig with_half_life(double samples) {
  OptimizerConfig config{.kind = "sgd"};
  config.half_life.momentum = samples;
  return config;
}

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = {
      {"sgd", {.kind = "sgd", .momentum = 0}, 0.5, 16, 40},
      {"sgd at 4 x the batch", {.kind = "sgd", .momentum = 0}, 0.5, 64, 40},
      {"momentum", {.kind = "sgd", .momentum = 0.9}, 0.05, 16, 40},
      {"Nesterov's momentum", {.kind = "sgd", .momentum = 0.9, .nesterov = true}, 0.05, 16, 40},
      {"momentum's half-life", with_half_life(100), 0.05, 16, 40},
  };
  return all;
}

TEST(NoisyQuadratic, WeightsAndTheirAverageFollowTheClosedForm) {
  constexpr double half_life = 200, tolerance = 0.06;  // four deviations of a mean square
  for (const Recipe& recipe : recipes())
    on_cpu_and_device([&](Backend& backend) {
      SCOPED_TRACE(recipe.name);
      const Course course = train(backend, recipe, half_life);
      for (std::size_t i = 0; i < curvatures.size(); ++i) {
        ClosedForm expected(recipe, curvatures[i], half_life);
        for (std::size_t step = 0; step < course.weights.size(); ++step) {
          expected.step();
          ASSERT_NEAR(course.weights[step][i] / expected.square(0), 1, tolerance) << i << ", step " << step;
          ASSERT_NEAR(course.averages[step][i] / expected.square(2), 1, tolerance) << i << ", step " << step;
        }
      }
    });
}

// tr(Sigma) = sum of c, and |G|^2 = sum of (h w)^2 at w = 1.
TEST(NoisyQuadratic, TheNoiseScaleIsTheOneThatTheNoiseWasMadeWith) {
  double trace = 0, gradient = 0;
  for (const double h : curvatures) trace += copies * h, gradient += copies * h * h;
  for (const double batch : {16.0, 256.0}) {
    Recipe recipe{"sgd", {.kind = "sgd", .momentum = 0}, 0.1, batch, 1, 4};
    const Course course = train(*make_cpu_backend(2), recipe, 100);
    EXPECT_NEAR(course.noise_trace / trace, 1, 0.05) << batch;
    EXPECT_NEAR(course.noise_gradient / gradient, 1, 0.05) << batch;
  }
}

// The steady state of SGD: E[w^2] = rate c / (B h (2 - rate h)), the paper's equation for the loss that remains.
TEST(NoisyQuadratic, TheLossThatRemainsIsProportionalToRateAndOneOverBatch) {
  const auto remains = [](double rate, double batch) {
    const Recipe recipe{"sgd", {.kind = "sgd", .momentum = 0}, rate, batch, 20};
    return train(*make_cpu_backend(2), recipe, 100).weights.back()[0];
  };
  const auto wanted = [](double rate, double batch) { return rate / (batch * (2 - rate)); };  // h = c = 1
  for (const auto& [rate, batch] : {std::pair(0.5, 16.0), {0.25, 16.0}, {0.5, 64.0}})
    EXPECT_NEAR(remains(rate, batch) / wanted(rate, batch), 1, 0.06) << rate << " " << batch;
}

}  // namespace
}  // namespace ringtrain
