// Tests the noise scale with random gradients whose |G|^2 and tr(Sigma) are known.
#include "optim/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/random.h"

namespace ringtrain {
namespace {

// The distribution of one sample's gradient, which is normal with this mean and variance per element.
struct Population {
  std::vector<double> mean, variance;
  double gradient = 0, trace = 0, squared_trace = 0;  // |G|^2, tr(Sigma), tr(Sigma^2)

  explicit Population(double scale) {
    constexpr int elements = 40;
    for (int i = 0; i < elements; ++i) {
      mean.push_back(0.1 * (i % 5));
      variance.push_back(scale * (1 + i % 7));
      gradient += mean.back() * mean.back();
      trace += variance.back();
      squared_trace += variance.back() * variance.back();
    }
  }
  double noise_scale() const { return trace / gradient; }
};

struct NoiseDraws {
  std::uint64_t next = 0;
  double operator()() { return random_normal(11, next++); }
};

// Draws a step of `count` small batches of `small` samples each. `of_one` is a wrong way: it uses the norm of the first
// small batch for the mean over all.
enum class SmallNorm { mean_of_all, of_one };
NoiseMeasurement draw_step(const Population& p, std::int64_t count, std::int64_t small, NoiseDraws& draws,
                           SmallNorm norm = SmallNorm::mean_of_all) {
  NoiseMeasurement m{.batch = count * small, .small_batch = static_cast<double>(small)};
  std::vector<double> total(p.mean.size(), 0.0);
  double first = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    double squared = 0;
    for (std::size_t i = 0; i < total.size(); ++i) {
      const double g = p.mean[i] + std::sqrt(p.variance[i] / static_cast<double>(small)) * draws();
      squared += g * g;
      total[i] += g / static_cast<double>(count);
    }
    if (k == 0) first = squared;
    m.small_squared_norm += squared / static_cast<double>(count);
  }
  for (const double g : total) m.squared_norm += g * g;
  if (norm == SmallNorm::of_one) m.small_squared_norm = first;
  return m;
}

struct Moments {
  double sum = 0, squares = 0, count = 0;
  void add(double x) {
    sum += x;
    squares += x * x;
    ++count;
  }
  double mean() const { return sum / count; }
  double deviation() const { return std::sqrt((squares / count - mean() * mean()) * count / (count - 1)); }
  double error_of_mean() const { return deviation() / std::sqrt(count); }
};

NoiseScale::Step step_of(const NoiseEstimate& estimate, std::int64_t number, std::int64_t batch) {
  return {.estimate = estimate, .samples = number * batch, .batch = batch, .small_batch = 1, .learning_rate = 0.1};
}

TEST(NoiseScale, EstimatesOfOneStepAreUnbiased) {
  const Population p(1);
  for (const auto& [count, small] : {std::pair{2, 32}, {8, 32}, {32, 4}, {3, 1}}) {
    NoiseDraws draws;
    Moments trace, gradient;
    for (int step = 0; step < 4000; ++step) {
      const NoiseEstimate e = estimate_noise(draw_step(p, count, small, draws));
      trace.add(e.trace);
      gradient.add(e.gradient);
    }
    EXPECT_NEAR(trace.mean(), p.trace, 3.5 * trace.error_of_mean()) << count << " x " << small;
    EXPECT_NEAR(gradient.mean(), p.gradient, 3.5 * gradient.error_of_mean()) << count << " x " << small;
  }
}

// With k normal gradients of b samples the estimate is b x their sample variance, so its variance is 2 tr(Sigma^2) / (k
// - 1). The norm of a single worker does not improve with the number of workers.
TEST(NoiseScale, TheScatterOfTheTraceFallsWithTheNumberOfSmallBatches) {
  const Population p(1);
  for (const int count : {4, 16, 64}) {
    const double expected = std::sqrt(2 * p.squared_trace / (count - 1));
    const auto deviation = [&](SmallNorm norm) {
      NoiseDraws draws;
      Moments trace;
      for (int step = 0; step < 2000; ++step) trace.add(estimate_noise(draw_step(p, count, 8, draws, norm)).trace);
      return trace.deviation();
    };
    EXPECT_NEAR(deviation(SmallNorm::mean_of_all), expected, 0.06 * expected) << count;
    EXPECT_GT(deviation(SmallNorm::of_one), 1.5 * expected) << count;
  }
}

// In this test the gradient's estimate is often near 0 or below it.
TEST(NoiseScale, IsTheRatioOfAveragesAndNotTheAverageOfRatios) {
  const Population p(3);
  const std::int64_t batch = 2 * 32;
  NoiseScale noise(1e12);
  NoiseDraws draws;
  Moments ratios;
  int negative = 0;
  for (int step = 1; step <= 20000; ++step) {
    const NoiseEstimate e = estimate_noise(draw_step(p, 2, 32, draws));
    negative += e.gradient < 0;
    ratios.add(e.trace / e.gradient);
    noise.add(step_of(e, step, batch));
  }
  EXPECT_GT(negative, 100) << "nothing is clamped";
  EXPECT_NEAR(noise.ratio().value, p.noise_scale(), 0.03 * p.noise_scale());
  EXPECT_GT(std::abs(ratios.mean() - p.noise_scale()), 0.1 * p.noise_scale());
}

TEST(NoiseScale, TheIntervalCoversTheTruthInNineteenOfTwentyRuns) {
  for (const auto& [variance, steps, half_life] : {std::tuple{1.0, 20, 1e12}, {1.0, 60, 10 * 64.0}, {4.0, 40, 1e12}}) {
    const Population p(variance);
    NoiseDraws draws;
    int covered = 0, unbounded = 0;
    constexpr int runs = 750;
    for (int run = 0; run < runs; ++run) {
      NoiseScale noise(half_life);
      for (int step = 1; step <= steps; ++step) noise.add(step_of(estimate_noise(draw_step(p, 8, 8, draws)), step, 64));
      const NoiseRatio ratio = noise.ratio();
      const double low = ratio.low.value_or(-INFINITY), high = ratio.high.value_or(INFINITY);
      covered += low <= p.noise_scale() && p.noise_scale() <= high;
      unbounded += !ratio.high.has_value();
    }
    EXPECT_NEAR(covered / static_cast<double>(runs), 0.95, 0.02) << variance << ", " << steps << " steps";
    EXPECT_LT(unbounded, runs / 2);
  }
}

TEST(NoiseScale, AnEndThatTheMeasurementsDoNotBoundIsNone) {
  NoiseDraws draws;
  Population p(1);
  p.mean.assign(p.mean.size(), 0.0);  // the noise scale is infinite
  NoiseScale noise(1e6);
  int with_low_end_only = 0;
  for (int step = 1; step <= 200; ++step) {
    noise.add(step_of(estimate_noise(draw_step(p, 8, 8, draws)), step, 64));
    const NoiseRatio ratio = noise.ratio();
    if (step <= 3) {
      EXPECT_FALSE(ratio.low || ratio.high) << "too few steps for an interval";
    }
    if (ratio.high) continue;
    with_low_end_only += ratio.low.has_value();
    if (ratio.low) {
      EXPECT_GT(*ratio.low, 64) << "at batch 64 the gradient does not show";
    }
  }
  EXPECT_GT(with_low_end_only, 150);
}

TEST(NoiseScale, TheIntervalsEndsSolveFiellersEquation) {
  NoiseScale noise(1e12);
  const std::vector<NoiseEstimate> steps = {{10, 2}, {12, 2.5}, {9, 1.8}, {11, 1.9}, {13, 2.2}, {10, 2.4}};
  double s = 0, g = 0, ss = 0, sg = 0, gg = 0;
  const auto n = static_cast<double>(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    noise.add(step_of(steps[i], static_cast<std::int64_t>(i) + 1, 64));
    s += steps[i].trace / n;
    g += steps[i].gradient / n;
  }
  for (const NoiseEstimate& e : steps) {
    ss += (e.trace - s) * (e.trace - s) / n / (n - 1);
    sg += (e.trace - s) * (e.gradient - g) / n / (n - 1);
    gg += (e.gradient - g) * (e.gradient - g) / n / (n - 1);
  }
  const NoiseRatio ratio = noise.ratio();
  EXPECT_NEAR(ratio.value, s / g, 1e-9);
  ASSERT_TRUE(ratio.low && ratio.high);
  constexpr double t = 2.570582;  // the quantile for 5 degrees of freedom
  for (const double x : {*ratio.low, *ratio.high}) {
    const double bound = t * std::sqrt(ss - 2 * x * sg + x * x * gg);
    EXPECT_NEAR(std::abs(s - x * g), bound, 1e-3 * bound);
  }
  EXPECT_LT(*ratio.low, ratio.value);
  EXPECT_GT(*ratio.high, ratio.value);
}

TEST(NoiseScale, AStepCountsByItsSamplesAndHalfAsMuchAfterTheHalfLife) {
  NoiseScale noise(64);
  noise.add(step_of({8, 1}, 1, 64));
  EXPECT_DOUBLE_EQ(noise.mean().trace, 8) << "the first average needs no more steps";
  noise.add(step_of({2, 4}, 2, 64));
  EXPECT_DOUBLE_EQ(noise.mean().trace, (8.0 / 2 + 2) / 1.5);
  EXPECT_DOUBLE_EQ(noise.mean().gradient, (1.0 / 2 + 4) / 1.5);
  EXPECT_DOUBLE_EQ(noise.ratio().value, noise.mean().trace / noise.mean().gradient);
  // The batch is twice as large. The step therefore has twice the weight, and ends two half-lives after the second one.
  noise.add({.estimate = {10, 1}, .samples = 4 * 64, .batch = 128, .small_batch = 1, .learning_rate = 0.1});
  EXPECT_DOUBLE_EQ(noise.mean().trace, (8.0 / 8 + 2.0 / 4 + 2 * 10) / (1.0 / 8 + 1.0 / 4 + 2));
}

TEST(NoiseScale, MarksTheFirstStepOfAnotherRateOrBatch) {
  NoiseScale noise(1e6);
  NoiseScale::Step step{.estimate = {1, 1}, .samples = 64, .batch = 64, .small_batch = 8, .learning_rate = 0.1};
  const auto change_after = [&](const std::function<void()>& edit) {
    edit();
    step.samples += step.batch;
    noise.add(step);
    return noise.change();
  };
  EXPECT_EQ(change_after([] {}), "") << "the first step";
  EXPECT_EQ(change_after([] {}), "");
  EXPECT_EQ(change_after([&] { step.learning_rate *= 0.95; }), "") << "a smooth decay";
  EXPECT_EQ(change_after([&] { step.learning_rate *= 0.1; }), "rate");
  EXPECT_EQ(change_after([&] { step.batch *= 2; }), "batch");
  EXPECT_EQ(change_after([&] { step.small_batch = 4; }), "batch");
  EXPECT_EQ(change_after([&] { step.batch *= 2, step.learning_rate *= 2; }), "batch and rate");
  EXPECT_EQ(change_after([] {}), "");
}

// The last batch of an epoch is smaller, and the batch after it has the usual size again.
TEST(NoiseScale, AnEpochsRestIsNoOtherBatch) {
  NoiseScale noise(1e6);
  NoiseScale::Step step{.estimate = {1, 1}, .samples = 64, .batch = 64, .small_batch = 8, .learning_rate = 0.1};
  noise.add(step);
  NoiseScale::Step rest = step;
  rest.samples = 64 + 20, rest.batch = 20, rest.is_rest = true;
  noise.add(rest);
  EXPECT_EQ(noise.change(), "");
  step.samples = 64 + 20 + 64;
  noise.add(step);
  EXPECT_EQ(noise.change(), "");
}

// The test uses the expected norms of 20 samples in small batches of 8, 8 and 4.
TEST(NoiseScale, ASmallerLastSmallBatchIsMeasuredByItsTrueSize) {
  const double gradient = 3, trace = 70;
  double sum = 0;  // sum of |G_i|^2, with G_i = b_i / B x the mean gradient of small batch i, as in the trainer
  for (const double b : {8.0, 8.0, 4.0}) sum += b * b / 400 * (gradient + trace / b);
  const double small = mean_small_batch(20, 8);
  EXPECT_DOUBLE_EQ(small, (64.0 + 64 + 16) / 20);
  const NoiseEstimate estimate = estimate_noise({.batch = 20,
                                                 .small_batch = small,
                                                 .squared_norm = gradient + trace / 20,
                                                 .small_squared_norm = 20 / small * sum});
  EXPECT_NEAR(estimate.gradient, gradient, 1e-12);
  EXPECT_NEAR(estimate.trace, trace, 1e-11);
  EXPECT_EQ(mean_small_batch(64, 8), 8) << "to the bit where all are as large";
}

TEST(NoiseScale, GoesOnFromItsStateBitForBit) {
  const Population p(1);
  NoiseDraws draws;
  NoiseScale whole(640), first(640), second(640);
  for (int step = 1; step <= 30; ++step) {
    const NoiseScale::Step s = step_of(estimate_noise(draw_step(p, 8, 8, draws)), step, 64);
    whole.add(s);
    if (step == 15)
      first.add(s), second.resume(first.state());
    else
      (step < 15 ? first : second).add(s);
  }
  EXPECT_EQ(second.state(), whole.state());
  EXPECT_EQ(second.ratio().low, whole.ratio().low);
}

// In AdaScale's words (section 4.3), sigma^2 = tr(Sigma) / B and mu^2 = |G|^2.
TEST(NoiseScale, TheGainIsAdaScalesAndItsShareIsPolluxsEfficiency) {
  const double trace = 300, gradient = 2, batch = 64;
  for (const double times : {0.5, 1.0, 2.0, 16.0}) {
    const double sigma2 = trace / batch, r = (sigma2 + gradient) / (sigma2 / times + gradient);
    EXPECT_NEAR(gain(trace / gradient, batch, times), r, 1e-12 * r);
  }
  EXPECT_DOUBLE_EQ(gain(150, 64, 1), 1);
  EXPECT_LT(gain(150, 64, 1e9), 1 + 150.0 / 64);
}

// The training set consists of D gradients. Their mean has the squared norm |G|^2 + tr(Sigma) / D. Batches drawn from
// them without replacement estimate the population's |G|^2, which is smaller.
TEST(NoiseScale, TheTrainingSetsOwnGradientIsLarger) {
  constexpr std::size_t samples = 24, batch = 6, elements = 4;
  std::vector<std::vector<double>> set(samples, std::vector<double>(elements));
  NoiseDraws draws;
  for (auto& sample : set)
    for (double& g : sample) g = 0.2 + draws();
  const auto norm_of_mean = [&](std::size_t begin, std::size_t end, const std::vector<std::size_t>& order) {
    double squared = 0;
    for (std::size_t e = 0; e < elements; ++e) {
      double sum = 0;
      for (std::size_t i = begin; i < end; ++i) sum += set[order[i]][e];
      squared += std::pow(sum / static_cast<double>(end - begin), 2);
    }
    return squared;
  };
  std::vector<std::size_t> order(samples);
  for (std::size_t i = 0; i < samples; ++i) order[i] = i;
  const double own = norm_of_mean(0, samples, order);
  Moments gradient, trace;
  for (std::uint64_t step = 0; step < 20000; ++step) {
    for (std::size_t i = 0; i < batch; ++i) {
      const auto other =
          i + static_cast<std::size_t>(random_uniform(5, step * batch + i) * static_cast<double>(samples - i));
      std::swap(order[i], order[other]);
    }
    NoiseMeasurement m{.batch = batch, .small_batch = 2, .squared_norm = norm_of_mean(0, batch, order)};
    for (std::size_t begin = 0; begin < batch; begin += 2)
      m.small_squared_norm += norm_of_mean(begin, begin + 2, order) / 3;
    const NoiseEstimate e = estimate_noise(m);
    gradient.add(e.gradient);
    trace.add(e.trace);
  }
  const NoiseEstimate set_own = of_training_set({trace.mean(), gradient.mean()}, samples);
  EXPECT_NEAR(set_own.gradient, own, 4 * gradient.error_of_mean());
  EXPECT_GT(own - gradient.mean(), 8 * gradient.error_of_mean());
}

}  // namespace
}  // namespace ringtrain
