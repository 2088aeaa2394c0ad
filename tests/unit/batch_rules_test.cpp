// Tests what the optimizer keeps constant when the batch changes: half-lives, the decay's time scale, Adam's moments,
// and the average of the weights. They are compared with small programs in float64, on the CPU and on a device.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "config/reader.h"
#include "optim/schedule.h"
#include "tests/unit/optimizer_training.h"

namespace ringtrain {
namespace {

ParameterTable table_of(std::int64_t rows) {
  ParameterTable table;
  table.append({"fc.bias", {rows}, ParameterKind::bias, InitialValues::constant, 0});
  table.append({"fc.weight", {rows, 7}, ParameterKind::weight, InitialValues::constant, 0});
  return table;
}

std::vector<double> drawn(const ParameterTable& table, std::uint64_t key) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < table.count(); ++i)
    values.push_back(0.5 * random_normal(key, static_cast<std::uint64_t>(i)));
  return values;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& wanted, double tolerance) {
  ASSERT_EQ(actual.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    ASSERT_NEAR(actual[i], wanted[i], tolerance * (1 + std::abs(wanted[i]))) << "element " << i;
}

// The first gradient is remembered, and the others are zero. The memory depends on the samples, not on the steps.
TEST(BatchRules, FourStepsForgetAsMuchAsOneOfFourTimesTheBatch) {
  const ParameterTable table = table_of(40);
  for (const char* kind : {"sgd", "lars", "adam", "lamb", "rmsprop", "muon", "rmsprop_to_sgd"})
    on_cpu_and_device([&](Backend& backend) {
      SCOPED_TRACE(kind);
      OptimizerConfig config{.kind = kind};
      config.half_life = {.momentum = 100, .beta1 = 200, .beta2 = 1000};
      const auto state_after = [&](const std::vector<double>& batches) {
        Training training(backend, table, config);
        training.set(*training.weights, drawn(table, 1));
        for (std::size_t step = 0; step <= batches.size(); ++step) {
          training.set(*training.gradients, step == 0 ? drawn(table, 2) : std::vector<double>(drawn(table, 2).size()));
          const UpdateStep at{.rate = 1e-6, .epochs = 1e6, .samples = step == 0 ? 64 : batches[step - 1]};
          training.update(at);
        }
        std::vector<std::vector<double>> states;
        for (const auto& state : training.optimizer.state()) {
          std::vector<float> values(static_cast<std::size_t>(table.trained()));
          backend.copy_to_host(*state, 0, values);
          states.emplace_back(values.begin(), values.end());
        }
        return states;
      };
      const auto once = state_after({64}), four = state_after({16, 16, 16, 16}), mixed = state_after({8, 40, 16});
      for (std::size_t i = 0; i < once.size(); ++i) {
        double size = 0;
        for (const double value : once[i]) size = std::max(size, std::abs(value));
        ASSERT_GT(size, 0);
        for (std::size_t k = 0; k < once[i].size(); ++k) {
          ASSERT_NEAR(four[i][k], once[i][k], 1e-6 * size) << i;
          ASSERT_NEAR(mixed[i][k], once[i][k], 1e-6 * size) << i;
        }
      }
    });
}

TEST(BatchRules, AHalfLifeAndItsFactorAreTwoFormsOfOneNumber) {
  EXPECT_EQ(step_factor(0.9, 0, 256), 0.9);
  EXPECT_DOUBLE_EQ(step_factor(0.9, 1000, 1000), 0.5);
  EXPECT_DOUBLE_EQ(step_factor(0.9, 1000, 2000), 0.25);
  EXPECT_NEAR(step_factor(0, half_life_of(0.9, 256), 256), 0.9, 1e-15);
  EXPECT_NEAR(step_share(0, 1000, 256), 1 - step_factor(0, 1000, 256), 1e-15);
  EXPECT_NEAR(step_share(0.9, 0, 256), 0.1, 1e-15);
  EXPECT_NEAR(step_share(0, 1e15, 1) / (std::log(2.0) / 1e15), 1, 1e-14);
}

// Adam with batches that change (Kingma and Ba 2015, with the product of the betas in the corrections), in float64.
struct ReferenceUpdate {
  OptimizerConfig config;
  std::vector<double> w, m, v, average;
  double product1 = 1, product2 = 1;

  void step(const std::vector<double>& g, double rate, double samples, double decay_factor) {
    const double b1 = std::exp2(-samples / config.half_life.beta1), b2 = std::exp2(-samples / config.half_life.beta2);
    product1 *= b1;
    product2 *= b2;
    const bool decoupled = config.kind == "adamw";
    const double decay = config.weight_decay * decay_factor;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double gradient = g[i] + (decoupled ? 0 : decay * w[i]);
      if (decoupled) w[i] -= rate * decay * w[i];
      m[i] = b1 * m[i] + (1 - b1) * gradient;
      v[i] = b2 * v[i] + (1 - b2) * gradient * gradient;
      w[i] -= rate * m[i] / (1 - product1) / (std::sqrt(v[i] / (1 - product2)) + config.epsilon);
    }
  }
};

const std::vector<double> batches = {16, 16, 64, 64, 64, 12, 32, 32, 128, 128, 16, 16};

// In the sixth step the gradient overflows. Its batch does not count.
TEST(BatchRules, AdamWithBatchesThatChangeIsTheFloat64Program) {
  const ParameterTable table = table_of(30);
  // 1 - beta of a half-life of 1e10 samples is below the last digit of a float.
  const HalfLifeConfig short_lives{.momentum = 0, .beta1 = 150, .beta2 = 900},
      long_lives{.momentum = 0, .beta1 = 1e8, .beta2 = 1e10};
  for (const auto& [kind, half_life] : {std::pair("adam", short_lives), std::pair("adamw", short_lives),
                                        std::pair("adam", long_lives), std::pair("adamw", long_lives)})
    on_cpu_and_device([&](Backend& backend) {
      SCOPED_TRACE(cat(kind, ", half-life ", half_life.beta2));
      OptimizerConfig config{.kind = kind, .weight_decay = 0.1, .no_decay = {}};
      config.half_life = half_life;
      const std::vector<double> start = drawn(table, 3), zeros(start.size());
      ReferenceUpdate reference{config, start, zeros, zeros, {}};
      Training training(backend, table, config);
      training.set(*training.weights, start);
      std::unique_ptr<Training> resumed;
      for (std::size_t step = 0; step < batches.size(); ++step) {
        const std::vector<double> g = drawn(table, 10 + step);
        const bool overflows = step == 5;
        const UpdateStep at{.rate = 0.02, .samples = batches[step], .decay_factor = batches[step] / 16};
        Training& now = resumed ? *resumed : training;
        now.set(*now.gradients, g, overflows ? std::numeric_limits<double>::infinity() : 1);
        now.update(at);
        if (!overflows) reference.step(g, 0.02, batches[step], batches[step] / 16);
        ASSERT_NO_FATAL_FAILURE(expect_near(now.get(*now.weights), reference.w, 4e-6)) << step;
        EXPECT_DOUBLE_EQ(now.optimizer.applied().beta2_product, reference.product2);
        if (step != 7) continue;
        resumed = std::make_unique<Training>(backend, table, config);
        resumed->set(*resumed->weights, now.get(*now.weights));
        for (std::size_t i = 0; i < now.optimizer.state().size(); ++i) {
          std::vector<float> values(static_cast<std::size_t>(table.trained()));
          now.optimizer.read_state(i, 0, values);
          resumed->optimizer.write_state(i, 0, values);
        }
        resumed->optimizer.resume(now.optimizer.applied());
      }
    });
}

// Before from_epoch the average is the weights, bit for bit. A skipped update does not move it.
TEST(BatchRules, TheAverageOfTheWeightsIsTheFloat64Program) {
  const ParameterTable table = table_of(30);
  for (const char* kind : {"sgd", "lars", "adam", "adamw", "lamb", "rmsprop", "rmsprop_to_sgd", "muon"})
    for (const double from_epoch : {0.0, 3.0})
      on_cpu_and_device([&](Backend& backend) {
        SCOPED_TRACE(kind);
        const AverageConfig average{.half_life = 100, .from_epoch = from_epoch, .evaluate = true};
        Training training(backend, table, {.kind = kind}, {}, average);
        training.set(*training.weights, drawn(table, 3));
        training.optimizer.begin(*training.weights);
        std::vector<double> wanted = training.get(*training.weights);
        EXPECT_EQ(training.get(training.optimizer.evaluated(*training.weights)), wanted);
        for (std::size_t step = 0; step < batches.size(); ++step) {
          const bool overflows = step == 5;
          training.set(*training.gradients, drawn(table, 10 + step),
                       overflows ? std::numeric_limits<double>::infinity() : 1);
          const auto epoch = static_cast<double>(step);
          const UpdateStep at{.rate = 0.02, .epochs = epoch, .samples = batches[step]};
          training.update(at);
          const std::vector<double> w = training.get(*training.weights);
          const double rho = epoch < from_epoch ? 0 : std::exp2(-batches[step] / 100);
          for (std::size_t i = 0; i < w.size() && !overflows; ++i) wanted[i] = rho * wanted[i] + (1 - rho) * w[i];
          const std::vector<double> evaluated = training.get(training.optimizer.evaluated(*training.weights));
          ASSERT_NO_FATAL_FAILURE(expect_near(evaluated, wanted, 1e-6)) << step;
          if (epoch < from_epoch) {
            EXPECT_EQ(evaluated, w);
          }
        }
        EXPECT_GT(std::abs(wanted[3] - training.get(*training.weights)[3]), 1e-6);
      });
}

Experiment read(const std::vector<std::string>& overrides) {
  return parse_experiment(
      "name: a\ndata: {train: x}\nbatch: {global: 256, worker: 32}\nstop: {epochs: 4}\n"
      "optimizer: {kind: adamw, weight_decay: 0.1}\n",
      "a.yaml", overrides);
}

// B / (rate x decay) is the same whatever the batch, the scaling and the rate of a later batch.
TEST(BatchRules, TheDecaysTimeScaleInSamplesStays) {
  const double wanted = 256 / (0.001 * 0.1);
  for (const char* scaling : {"none", "linear", "sqrt", "legw", "adam_sde"})
    for (const std::int64_t batch : {64, 256, 1024}) {
      std::vector<std::string> keys = {cat("batch.global=", batch), "learning_rate.base_batch=256",
                                       "optimizer.weight_decay_by=sample", cat("learning_rate.scaling=", scaling)};
      const Experiment e = read(keys);
      const ScheduleContext context{.global_batch = batch, .steps_per_epoch = 10};
      for (const double samples : {32.0, static_cast<double>(batch), 4.0 * static_cast<double>(batch)})
        for (const double rate_factor : {1.0, 0.5}) {
          const double rate = learning_rate(e.learning_rate, context, 0) * rate_factor;
          const double decay = 0.1 * decay_factor(e, context, samples, rate_factor);
          EXPECT_NEAR(samples / (rate * decay), wanted, 1e-9 * wanted) << scaling << batch;
        }
    }
  const ScheduleContext context{.global_batch = 256, .steps_per_epoch = 10};
  EXPECT_EQ(decay_factor(read({}), context, 1024, 0.5), 1);
  EXPECT_EQ(decay_factor(read({"optimizer.weight_decay_by=sample"}), context, 256, 1), 1);  // the first batch
  EXPECT_EQ(decay_factor(read({"optimizer.weight_decay_by=sample"}), context, 1024, 1), 4);
}

// Malladi et al. 2022, arXiv:2205.10287.
TEST(BatchRules, AdamSdeMovesRateBetasAndEpsilon) {
  const std::vector<std::string> keys = {"learning_rate.scaling=adam_sde", "learning_rate.base_batch=64",
                                         "optimizer.epsilon=1e-6", "optimizer.beta1=0.9", "optimizer.beta2=0.99"};
  const Experiment e = read(keys);  // k is 4
  const OptimizerConfig o = optimizer_of(e, {.global_batch = 256, .steps_per_epoch = 1});
  EXPECT_NEAR(o.beta1, 0.6, 1e-12);
  EXPECT_NEAR(o.beta2, 0.96, 1e-12);
  EXPECT_DOUBLE_EQ(o.epsilon, 5e-7);
  EXPECT_DOUBLE_EQ(learning_rate(e.learning_rate, {.global_batch = 256, .steps_per_epoch = 1}, 0), 0.002);
  EXPECT_EQ(optimizer_of(read({}), {.global_batch = 256, .steps_per_epoch = 1}), read({}).optimizer);
}

}  // namespace
}  // namespace ringtrain
