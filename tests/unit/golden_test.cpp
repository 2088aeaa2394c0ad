// Compares the engine and the optimizers with PyTorch. The scripts in tests/golden made the values in
// tests/golden/*.json.
#include "tests/unit/golden.h"

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "models/models.h"
#include "optim/optimizer.h"
#include "tests/unit/one_update.h"
#include "tests/unit/test_pass.h"

namespace ringtrain {
namespace {

using nlohmann::json;

// The golden file names parameters as torch.nn.LSTM does. The model adds "lstm." in front.
std::string our_name(const std::string& name) {
  return name.rfind("linear", 0) == 0 ? name : "lstm." + name;
}

TEST(Golden, LstmLossGradientsAndStatesEqualPyTorch) {
  const json all = golden("lstm.json");
  ASSERT_GE(all.at("cases").size(), 3u);
  for (const json& c : all.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    const std::int64_t hidden = c.at("hidden"), layers = c.at("layers"), rows = c.at("batch"), steps = c.at("steps");
    const Graph graph = char_lstm({"char_lstm", hidden, layers, 0.0}, {steps, c.at("vocabulary")});
    const ParameterTable table = graph.parameters();
    std::unique_ptr<Backend> backend = make_cpu_backend(2);
    auto weights = backend->make_vector(table.size()), gradients = backend->make_vector(table.size());
    std::size_t given = 0;
    for (const auto& [name, tensor] : c.at("parameters").items()) {
      const Parameter& p = table.find(our_name(name));
      EXPECT_EQ(tensor.at("shape").get<std::vector<std::int64_t>>(), p.shape);
      const std::vector<double> v = values(tensor);
      for (std::size_t i = 0; i < v.size(); ++i)
        weights->data()[static_cast<std::size_t>(p.offset) + i] = static_cast<float>(v[i]);
      ++given;
    }
    EXPECT_EQ(given, table.all().size());

    std::vector<std::uint8_t> tokens;
    std::vector<std::int32_t> targets;
    for (double v : values(c.at("tokens"))) tokens.push_back(static_cast<std::uint8_t>(v));
    const double ignored = c.at("ignored_target");
    for (double v : values(c.at("targets"))) targets.push_back(v == ignored ? -1 : static_cast<std::int32_t>(v));
    // PyTorch's shape is [layers, batch, hidden], and the program's is [batch, layers, (h, c), hidden].
    const std::vector<double> start[2] = {values(c.at("h0")), values(c.at("c0"))};
    const std::vector<double> end[2] = {values(c.at("h")), values(c.at("c"))};
    std::vector<float> state(static_cast<std::size_t>(rows * graph.state_size()));
    const auto place = [&](std::int64_t l, std::int64_t r, int which, std::int64_t j) {
      return static_cast<std::size_t>(((r * layers + l) * 2 + which) * hidden + j);
    };
    const auto torch_place = [&](std::int64_t l, std::int64_t r, std::int64_t j) {
      return static_cast<std::size_t>((l * rows + r) * hidden + j);
    };
    const auto for_each_state = [&](const auto& body) {
      for (std::int64_t l = 0; l < layers; ++l)
        for (std::int64_t r = 0; r < rows; ++r)
          for (int which = 0; which < 2; ++which)
            for (std::int64_t j = 0; j < hidden; ++j) body(place(l, r, which, j), which, torch_place(l, r, j));
    };
    for_each_state([&](std::size_t ours, int which, std::size_t theirs) {
      state[ours] = static_cast<float>(start[which][theirs]);
    });

    auto program = backend->compile(graph, rows, Precision::fp32, PassMode::training);
    program->allocate();
    program->set_weights(*weights);
    const double counted = c.at("counted_targets");
    TestPass pass;
    pass.inputs = tokens.data();
    pass.targets = targets.data();
    pass.gradient_scale = static_cast<float>(1 / counted);
    pass.state = state.data();
    const LossSums sums = run(*program, pass);
    program->backward(*gradients, false, {});
    EXPECT_EQ(static_cast<double>(sums.targets), counted);
    EXPECT_NEAR(sums.loss / counted, c.at("loss").get<double>(), 2e-6);
    for_each_state(
        [&](std::size_t ours, int which, std::size_t theirs) { EXPECT_NEAR(state[ours], end[which][theirs], 1e-6); });
    for (const auto& [name, tensor] : c.at("gradients").items()) {
      const Parameter& p = table.find(our_name(name));
      const std::vector<double> v = values(tensor);
      for (std::size_t i = 0; i < v.size(); ++i)
        EXPECT_NEAR(gradients->data()[static_cast<std::size_t>(p.offset) + i], v[i], 1e-6) << name << "[" << i << "]";
    }
  }
}

TEST(Golden, OptimizerTrajectoriesEqualPyTorch) {
  const json all = golden("optimizers.json");
  ASSERT_GE(all.at("cases").size(), 6u);
  for (const json& c : all.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    OptimizerConfig config;
    config.kind = c.at("kind");
    config.momentum = c.at("momentum");
    config.nesterov = c.at("nesterov");
    config.weight_decay = c.at("weight_decay");
    config.beta1 = c.at("beta1");
    config.beta2 = c.at("beta2");
    config.epsilon = c.at("epsilon");
    const std::vector<double> start = values(c.at("start")), given = values(c.at("gradients"));
    const std::vector<double> trajectory = values(c.at("trajectory"));
    const std::size_t n = start.size();
    ParameterTable table;
    table.append({"w", {static_cast<std::int64_t>(n)}, ParameterKind::weight, InitialValues::constant, 0, 0, 0});
    std::unique_ptr<Backend> backend = make_cpu_backend(1);
    auto weights = backend->make_vector(table.size()), gradients = backend->make_vector(table.size());
    for (std::size_t i = 0; i < n; ++i) weights->data()[i] = static_cast<float>(start[i]);
    Optimizer optimizer(config, table, *backend);
    const std::vector<double> rates = c.at("rates");
    for (std::size_t step = 0; step < rates.size(); ++step) {
      for (std::size_t i = 0; i < n; ++i) gradients->data()[i] = static_cast<float>(given[step * n + i]);
      one_update(optimizer, *weights, *gradients, {rates[step]}, 1, 0);
      for (std::size_t i = 0; i < n; ++i)
        EXPECT_NEAR(weights->data()[i], trajectory[step * n + i], 2e-6 * (1 + std::abs(trajectory[step * n + i])))
            << "step " << step << " element " << i;
    }
  }
}

TEST(Optimizer, DecayGoesByKindAndClippingByGlobalNorm) {
  ParameterTable table;
  table.append({"w", {3}, ParameterKind::weight, InitialValues::constant, 0, 0, 0});
  table.append({"b", {3}, ParameterKind::bias, InitialValues::constant, 0, 0, 0});
  table.append({"n", {3}, ParameterKind::norm, InitialValues::constant, 0, 0, 0});
  for (const std::vector<std::string>& no_decay :
       std::vector<std::vector<std::string>>{{}, {"norm"}, {"bias"}, {"norm", "bias"}}) {
    std::unique_ptr<Backend> backend = make_cpu_backend(1);
    auto weights = backend->make_vector(table.size()), gradients = backend->make_vector(table.size());
    for (const Parameter& p : table.all()) {
      weights->data()[p.offset] = 2;
      gradients->data()[p.offset] = 3;
    }
    OptimizerConfig config;
    config.kind = "sgd";
    config.momentum = 0;
    config.weight_decay = 0.5;
    config.no_decay = no_decay;
    config.clip_norm = std::sqrt(27.0) / 6;  // gradients of 3 shrink to 0.5, the decay does not
    Optimizer optimizer(config, table, *backend);
    one_update(optimizer, *weights, *gradients, {0.1}, 1, 0);
    for (const Parameter& p : table.all()) {
      const bool decayed = std::ranges::count(no_decay, parameter_kind_name(p.kind)) == 0;
      EXPECT_FLOAT_EQ(weights->data()[p.offset], 2 - 0.1f * (0.5f + (decayed ? 1.0f : 0.0f))) << p.name;
    }
  }
}

}  // namespace
}  // namespace ringtrain
