// Trains a few steps on any backend and keeps everything that can be compared. The tests of GPU programs share it.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/backend.h"
#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "base/pages.h"
#include "models/models.h"
#include "optim/optimizer.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/images.h"
#include "tests/unit/one_update.h"

namespace ringtrain::cuda {

struct Task {
  Graph graph;
  std::int64_t rows = 0, micro_batch = 0, group = 0;  // rows of a step
  std::vector<float> weights;
  std::vector<std::uint8_t> inputs;
  std::vector<std::int32_t> targets;
  std::vector<float> state;  // carried from step to step; empty for none
  Precision precision = Precision::fp32;
  int steps = 3;
  float overflow_scale = 1;  // the loss scale of fp16
  std::string optimizer = "sgd";
  double rate = 0.01;
  ParameterTable table = graph.parameters();
  std::int64_t counted() const {
    return std::count_if(targets.begin(), targets.end(), [](int t) { return t >= 0; });
  }
};

inline Task image_task(const Graph& graph, std::int64_t rows, std::int64_t micro_batch, std::int64_t group) {
  const Images drawn(graph, rows, group);
  return {.graph = graph,
          .rows = rows,
          .micro_batch = micro_batch,
          .group = group,
          .weights = {drawn.w.begin(), drawn.w.end()},
          .inputs = drawn.x,
          .targets = drawn.y,
          .state = {},
          .rate = 1e-4};
}

// Every `blank_every`-th target does not count. With 0, all targets count.
inline Task text_task(const ModelConfig& model, std::int64_t length, std::int64_t vocabulary, std::int64_t rows,
                      std::int64_t micro_batch, bool carried = false, std::int64_t blank_every = 0) {
  Task task{.graph = char_lstm(model, {.sequence = length, .vocabulary = vocabulary}),
            .rows = rows,
            .micro_batch = micro_batch,
            .weights = {},
            .inputs = {},
            .targets = {},
            .state = {},
            .rate = 0.01};
  task.weights.resize(static_cast<std::size_t>(task.table.size()));
  initialize(task.table, 7, task.weights);
  const std::uint64_t key = random_key(3, RandomPurpose::sampling);
  for (std::int64_t i = 0; i < rows * length; ++i) {
    const auto symbol = [&](std::int64_t k) {
      return static_cast<int>(random_uniform(key, static_cast<std::uint64_t>(2 * i + k)) *
                              static_cast<double>(vocabulary));
    };
    task.inputs.push_back(static_cast<std::uint8_t>(symbol(0)));
    task.targets.push_back(blank_every > 0 && i % blank_every == 1 ? -1 : symbol(1));
  }
  if (carried)
    for (std::int64_t i = 0; i < rows * task.graph.state_size(); ++i)
      task.state.push_back(static_cast<float>(0.5 * random_normal(key + 1, static_cast<std::uint64_t>(i))));
  return task;
}

// The results of a task on a backend, step by step.
struct Curve {
  std::vector<LossSums> sums;
  std::vector<std::vector<float>> gradients, weights, states;
  std::vector<UpdateResult> updates;
  std::vector<std::vector<float>> logits;  // inference with the last weights, [row x position]
  LossSums evaluated;
};

// Functions of a test that train() calls.
struct Listener {
  std::function<void(Program&)> compiled, before_step;
  // Called for the backward pass of the last micro-step.
  std::function<void(const Vector& gradients, std::int64_t watermark)> ready;
  std::function<void(const Vector& gradients)> before_update;
};

inline Curve train(Backend& backend, const Task& task, const Listener& listener = {}) {
  Curve curve;
  const std::int64_t size = task.table.size();
  const auto weights = backend.make_vector(size), gradients = backend.make_vector(size, true);
  backend.copy_from_host(task.weights, *weights, 0);
  OptimizerConfig config;
  config.kind = task.optimizer;
  config.momentum = 0.9;
  config.weight_decay = 1e-3;
  Optimizer optimizer(config, task.table, backend);
  const auto program = backend.compile(task.graph, task.micro_batch, task.precision, PassMode::training, task.group);
  program->allocate();
  program->set_weights(*weights);
  if (listener.compiled) listener.compiled(*program);

  const auto fetch = [&](const Vector& vector) {
    std::vector<float> values(static_cast<std::size_t>(size));
    backend.copy_to_host(vector, 0, values);
    return values;
  };
  // Inputs go to two page-locked places in turn. The loader uses the slots of its ring in the same way. The test
  // overwrites a place after forward() has returned.
  const std::int64_t symbols = task.micro_batch * task.graph.input_bytes(),
                     places = task.micro_batch * task.graph.sequence();
  PageVector<std::uint8_t> inputs[2];
  PageVector<std::int32_t> targets[2];
  for (int i = 0; i < 2; ++i) {
    inputs[i].resize(static_cast<std::size_t>(symbols));
    targets[i].resize(static_cast<std::size_t>(places));
    backend.pin(pages_of(inputs[i]));
    backend.pin(pages_of(targets[i]));
  }
  std::int64_t staged = 0;  // number of passes
  const auto stage = [&](Program& to) {
    const std::int64_t row = staged * task.micro_batch % task.rows;
    auto& x = inputs[staged % 2];
    auto& y = targets[staged % 2];
    std::copy_n(task.inputs.begin() + row * task.graph.input_bytes(), symbols, x.begin());
    std::copy_n(task.targets.begin() + row * task.graph.sequence(), places, y.begin());
    to.stage({x.data(), y.data()});
    ++staged;
  };
  const auto overwrite = [&] {
    std::fill(inputs[(staged - 1) % 2].begin(), inputs[(staged - 1) % 2].end(), std::uint8_t{0});
    std::fill(targets[(staged - 1) % 2].begin(), targets[(staged - 1) % 2].end(), 0);
  };
  std::vector<float> state = task.state;
  const float group = static_cast<float>(task.group == 0 ? task.rows : task.group);
  for (int step = 0; step < task.steps; ++step) {
    if (listener.before_step) listener.before_step(*program);
    // These values stand for those of an earlier step, which this step has to overwrite.
    std::vector<float> garbage(static_cast<std::size_t>(size), 0.0f);
    for (const Parameter& p : task.table.all())
      std::fill_n(garbage.begin() + p.offset, p.count, std::numeric_limits<float>::quiet_NaN());
    backend.copy_from_host(garbage, *gradients, 0);
    for (std::int64_t row = 0; row < task.rows; row += task.micro_batch) {
      PassContext context{.gradient_scale = task.overflow_scale / static_cast<float>(task.counted()),
                          .statistic_scale = group / static_cast<float>(task.rows),
                          .dropout_key = random_key(11, RandomPurpose::dropout),
                          .step = step,
                          .first_row = 32 + row};
      if (!state.empty()) context.state = state.data() + row * task.graph.state_size();
      if (step == 0 && row == 0) stage(*program);
      program->forward(context);
      overwrite();
      const bool last = row + task.micro_batch == task.rows;
      BackwardHooks hooks;
      if (last && listener.ready) hooks.ready = [&](std::int64_t watermark) { listener.ready(*gradients, watermark); };
      program->backward(*gradients, row > 0, hooks);
      if (!last || step + 1 < task.steps) stage(*program);
    }
    curve.sums.push_back(program->take_sums());
    if (listener.before_update) listener.before_update(*gradients);
    curve.gradients.push_back(fetch(*gradients));
    curve.updates.push_back(
        one_update(optimizer, *weights, *gradients, {task.rate}, task.overflow_scale, 0.1f, program.get()));
    curve.weights.push_back(fetch(*weights));
    curve.states.push_back(state);
  }

  const auto inference = backend.compile(task.graph, task.micro_batch, task.precision, PassMode::inference, task.group);
  inference->allocate();
  inference->set_weights(*weights);
  for (std::int64_t row = 0; row < task.rows; row += task.micro_batch) {
    stage(*inference);
    inference->forward({});
    overwrite();
    curve.evaluated += inference->take_sums();
    for (std::int64_t r = 0; r < task.micro_batch; ++r)
      for (std::int64_t t = 0; t < task.graph.sequence(); ++t) curve.logits.push_back(inference->logits(r, t));
  }
  for (int i = 0; i < 2; ++i) {
    backend.unpin(pages_of(inputs[i]));
    backend.unpin(pages_of(targets[i]));
  }
  return curve;
}

inline Curve train_on_cpu(const Task& task) {
  return train(*make_cpu_backend(1), task);
}

// Fills all memory that does not last from pass to pass with NaNs, in the program's own stream. No command may read
// this memory before it has been written.
inline void poison_activations(HostDevice& device, const Program& program) {
  const Schedule& schedule = dynamic_cast<const ProgramBase&>(program).schedule();
  std::vector<Region> regions;
  for (const auto& [at, allocation] : device.allocations()) {
    if (allocation.what != "the training program") continue;
    for (const ArenaPlan::Item& item : schedule.arena().items())
      if (item.first >= 0) regions.push_back({reinterpret_cast<char*>(at) + item.offset, item.bytes, true});
  }
  device.poison(regions, device.compute_stream());
}

// Runs the GPU program on the CPU. The device finds unordered accesses, wrong addresses and writes after the end of an
// allocation. Activations that must not be read hold NaNs.
inline Curve train_on_host_device(const Task& task, HostDeviceOptions device_options = {},
                                  BackendOptions options = {}) {
  HostDevice device(std::move(device_options));
  const auto backend = make_backend(device, std::move(options));
  Listener listener;
  listener.before_step = [&](Program& program) { poison_activations(device, program); };
  Curve curve = train(*backend, task, listener);
  device.finish_all();
  device.check_guards();
  return curve;
}

struct Tolerance {
  double loss, gradients, weights, logits;
  double whole_gradient = 0;  // 0 compares each tensor; otherwise the limit for the whole vector
};

inline void expect_equal_training(const Task& task, const Curve& expected, const Curve& actual, const Tolerance& t) {
  for (std::size_t step = 0; step < expected.sums.size(); ++step) {
    const std::string what = cat("step ", step);
    EXPECT_NEAR(actual.sums[step].loss, expected.sums[step].loss, t.loss * expected.sums[step].loss) << what;
    EXPECT_EQ(actual.sums[step].targets, expected.sums[step].targets) << what;
    if (task.precision == Precision::fp32) {
      EXPECT_EQ(actual.sums[step].correct, expected.sums[step].correct) << what;
      EXPECT_EQ(actual.sums[step].correct5, expected.sums[step].correct5) << what;
    }
    const float *g = actual.gradients[step].data(), *wanted = expected.gradients[step].data();
    if (t.whole_gradient > 0) {
      EXPECT_LE(relative_difference(g, wanted, task.table.trained()), t.whole_gradient) << what;
    } else {
      SCOPED_TRACE(what);
      expect_same_tensors(task.table, g, wanted, t.gradients);
    }
    EXPECT_TRUE(actual.updates[step].applied);
    const double norm = expected.updates[step].gradient_norm;
    EXPECT_NEAR(actual.updates[step].gradient_norm, norm, std::max(t.gradients, t.whole_gradient) * norm) << what;
    EXPECT_LE(relative_difference(actual.weights[step].data(), expected.weights[step].data(), task.table.size()),
              t.weights)
        << what;
    for (std::size_t i = 0; i < expected.states[step].size(); ++i)
      ASSERT_NEAR(actual.states[step][i], expected.states[step][i], t.logits) << what << ", carried state " << i;
  }
  EXPECT_NEAR(actual.evaluated.loss, expected.evaluated.loss, t.loss * expected.evaluated.loss);
  ASSERT_EQ(actual.logits.size(), expected.logits.size());
  for (std::size_t i = 0; i < expected.logits.size(); ++i) {
    ASSERT_EQ(actual.logits[i].size(), expected.logits[i].size());
    EXPECT_LE(relative_difference(actual.logits[i].data(), expected.logits[i].data(), std::ssize(expected.logits[i])),
              t.logits);
  }
}

// All results must be equal bit for bit.
inline void expect_same_bits(const Curve& a, const Curve& b) {
  for (std::size_t step = 0; step < a.sums.size(); ++step) {
    EXPECT_EQ(a.sums[step].loss, b.sums[step].loss) << "step " << step;
    EXPECT_EQ(a.sums[step].correct, b.sums[step].correct) << "step " << step;
    EXPECT_EQ(a.gradients[step], b.gradients[step]) << "step " << step;
    EXPECT_EQ(a.weights[step], b.weights[step]) << "step " << step;
    EXPECT_EQ(a.states[step], b.states[step]) << "step " << step;
  }
  EXPECT_EQ(a.logits, b.logits);
}

}  // namespace ringtrain::cuda
