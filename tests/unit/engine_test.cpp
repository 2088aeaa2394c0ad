// Compares the engine with fp64 loops: losses, gradients of every tensor, dropout and carried state, also with sizes
// that the engine pads. The loops share only the random numbers of dropout with the engine.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "base/random.h"
#include "models/models.h"
#include "tests/unit/dropout_reference.h"
#include "tests/unit/test_pass.h"

namespace ringtrain {
namespace {

// The char-LSTM in fp64, written from the formulas. It has a forward pass only. The engine's gradients are compared
// with differences of this loss.
struct ReferenceLstm {
  const Graph& graph;
  ParameterTable table = graph.parameters();
  std::int64_t hidden, layers, vocabulary, steps;
  double dropout = 0;

  // The start of a tensor in the flat vector.
  const double* tensor(const std::vector<double>& w, const std::string& name) const {
    return w.data() + table.find(name).offset;
  }

  // Returns the mean cross-entropy over the targets that count. `state` is [rows][layers][2][hidden] and is read and
  // overwritten. If it is null, the state begins at zero.
  double loss(const std::vector<double>& w, const std::vector<std::uint8_t>& x, const std::vector<std::int32_t>& y,
              std::int64_t rows, const TestPass& pass, std::vector<double>* state, double* sum_out = nullptr) const {
    struct Layer {
      const double *w_ih, *w_hh, *b_ih, *b_hh;
    };
    std::vector<Layer> of;
    for (std::int64_t l = 0; l < layers; ++l) {
      const std::string s = "_l" + std::to_string(l);
      of.push_back({tensor(w, "lstm.weight_ih" + s), tensor(w, "lstm.weight_hh" + s), tensor(w, "lstm.bias_ih" + s),
                    tensor(w, "lstm.bias_hh" + s)});
    }
    const double *linear = tensor(w, "linear.weight"), *linear_bias = tensor(w, "linear.bias");
    double sum = 0;
    std::int64_t count = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<std::vector<double>> h(static_cast<std::size_t>(layers)), c(static_cast<std::size_t>(layers));
      for (std::int64_t l = 0; l < layers; ++l) {
        h[static_cast<std::size_t>(l)].assign(static_cast<std::size_t>(hidden), 0);
        c[static_cast<std::size_t>(l)].assign(static_cast<std::size_t>(hidden), 0);
        if (state != nullptr)
          for (std::int64_t j = 0; j < hidden; ++j) {
            h[static_cast<std::size_t>(l)][static_cast<std::size_t>(j)] =
                (*state)[static_cast<std::size_t>(((r * layers + l) * 2 + 0) * hidden + j)];
            c[static_cast<std::size_t>(l)][static_cast<std::size_t>(j)] =
                (*state)[static_cast<std::size_t>(((r * layers + l) * 2 + 1) * hidden + j)];
          }
      }
      for (std::int64_t t = 0; t < steps; ++t) {
        std::vector<double> in(static_cast<std::size_t>(vocabulary), 0);
        in[x[static_cast<std::size_t>(r * steps + t)]] = 1;
        for (std::int64_t l = 0; l < layers; ++l) {
          auto& hl = h[static_cast<std::size_t>(l)];
          auto& cl = c[static_cast<std::size_t>(l)];
          const Layer& weights = of[static_cast<std::size_t>(l)];
          const auto width = static_cast<std::int64_t>(in.size());
          std::vector<double> z(static_cast<std::size_t>(4 * hidden));
          for (std::int64_t g = 0; g < 4 * hidden; ++g) {
            double v = weights.b_ih[g] + weights.b_hh[g];
            for (std::int64_t k = 0; k < width; ++k) v += weights.w_ih[g * width + k] * in[static_cast<std::size_t>(k)];
            for (std::int64_t k = 0; k < hidden; ++k)
              v += weights.w_hh[g * hidden + k] * hl[static_cast<std::size_t>(k)];
            z[static_cast<std::size_t>(g)] = v;
          }
          const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
          in.assign(static_cast<std::size_t>(hidden), 0);
          for (std::int64_t j = 0; j < hidden; ++j) {
            const auto gate = [&](int k) { return z[static_cast<std::size_t>(k * hidden + j)]; };
            double& cj = cl[static_cast<std::size_t>(j)];
            cj = sigmoid(gate(1)) * cj + sigmoid(gate(0)) * std::tanh(gate(2));
            hl[static_cast<std::size_t>(j)] = sigmoid(gate(3)) * std::tanh(cj);
            double out = hl[static_cast<std::size_t>(j)];
            if (dropout > 0 && l + 1 < layers) out *= dropout_factor(pass, dropout, l, r, t, j);
            in[static_cast<std::size_t>(j)] = out;
          }
        }
        const std::int32_t target = y[static_cast<std::size_t>(r * steps + t)];
        if (target < 0) continue;
        std::vector<double> logit(static_cast<std::size_t>(vocabulary));
        double total = 0;
        for (std::int64_t v = 0; v < vocabulary; ++v) {
          double z = linear_bias[v];
          for (std::int64_t k = 0; k < hidden; ++k) z += linear[v * hidden + k] * in[static_cast<std::size_t>(k)];
          logit[static_cast<std::size_t>(v)] = z;
          total += std::exp(z);
        }
        sum += std::log(total) - logit[target];
        ++count;
      }
      if (state != nullptr)
        for (std::int64_t l = 0; l < layers; ++l)
          for (std::int64_t j = 0; j < hidden; ++j) {
            (*state)[static_cast<std::size_t>(((r * layers + l) * 2 + 0) * hidden + j)] =
                h[static_cast<std::size_t>(l)][static_cast<std::size_t>(j)];
            (*state)[static_cast<std::size_t>(((r * layers + l) * 2 + 1) * hidden + j)] =
                c[static_cast<std::size_t>(l)][static_cast<std::size_t>(j)];
          }
    }
    if (sum_out != nullptr) *sum_out = sum;
    return sum / static_cast<double>(count);
  }
};

struct ShapeCase {
  std::int64_t hidden, layers, vocabulary, steps, rows;
  int threads;
  double dropout = 0;
  bool state = false;
  int ignored_every = 0;  // every n-th target does not count
};

std::ostream& operator<<(std::ostream& out, const ShapeCase& c) {
  return out << "H" << c.hidden << " L" << c.layers << " V" << c.vocabulary << " T" << c.steps << " rows" << c.rows
             << " threads" << c.threads << " dropout" << c.dropout << " state" << c.state;
}

struct Bench {
  ShapeCase c;
  Graph graph;
  ReferenceLstm reference;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Vector> weights, gradients;
  std::vector<double> w;
  std::vector<std::uint8_t> x;
  std::vector<std::int32_t> y;
  std::vector<float> state;
  TestPass pass;

  explicit Bench(const ShapeCase& the_case)
      : c(the_case),
        graph(char_lstm({"char_lstm", c.hidden, c.layers, c.dropout}, {c.steps, c.vocabulary})),
        reference{graph, graph.parameters(), c.hidden, c.layers, c.vocabulary, c.steps, c.dropout},
        backend(make_cpu_backend(c.threads)) {
    const ParameterTable& table = reference.table;
    std::vector<float> initial(static_cast<std::size_t>(table.size()));
    initialize(table, 7, initial);
    weights = backend->make_vector(table.size());
    gradients = backend->make_vector(table.size());
    backend->copy_from_host(initial, *weights, 0);
    w.assign(initial.begin(), initial.end());
    const std::uint64_t key = random_key(3, RandomPurpose::sampling);
    for (std::int64_t i = 0; i < c.rows * c.steps; ++i) {
      const auto symbol = [&](std::int64_t k) {
        return static_cast<std::uint8_t>(random_uniform(key, static_cast<std::uint64_t>(2 * i + k)) *
                                         static_cast<double>(c.vocabulary));
      };
      x.push_back(symbol(0));
      y.push_back(c.ignored_every > 0 && i % c.ignored_every == 1 ? -1 : std::int32_t{symbol(1)});
    }
    if (c.state)
      for (std::int64_t i = 0; i < c.rows * graph.state_size(); ++i)
        state.push_back(static_cast<float>(random_normal(key, static_cast<std::uint64_t>(i)) * 0.5));
    pass.inputs = x.data();
    pass.targets = y.data();
    pass.dropout_key = random_key(11, RandomPurpose::dropout);
    pass.step = 5;
    pass.first_row = 32;
    pass.state = c.state ? state.data() : nullptr;
    std::int64_t counted = 0;
    for (std::int32_t target : y) counted += target >= 0;
    pass.gradient_scale = 1.0f / static_cast<float>(counted);
  }

  std::unique_ptr<Program> program(Precision precision, PassMode mode = PassMode::training) {
    auto p = backend->compile(graph, c.rows, precision, mode);
    p->allocate();
    p->set_weights(*weights);
    return p;
  }
};

class CharLstm : public testing::TestWithParam<ShapeCase> {};

TEST_P(CharLstm, LossAndEveryGradientMatchFp64Loops) {
  Bench s(GetParam());
  std::vector<double> state(s.state.begin(), s.state.end());
  double sum = 0;
  s.reference.loss(s.w, s.x, s.y, s.c.rows, s.pass, s.c.state ? &state : nullptr, &sum);

  auto program = s.program(Precision::fp32);
  const std::vector<double> state_before(s.state.begin(), s.state.end());
  const LossSums sums = run(*program, s.pass);
  EXPECT_NEAR(sums.loss, sum, 2e-5 * std::abs(sum));
  for (std::size_t i = 0; i < state.size(); ++i) EXPECT_NEAR(s.state[i], state[i], 2e-6) << "carried state " << i;

  std::int64_t watermark = 0;
  program->backward(*s.gradients, false,
                    {[&](std::int64_t w) {
                       EXPECT_GT(w, watermark);
                       watermark = w;
                     },
                     {}});
  EXPECT_EQ(watermark, s.reference.table.size());

  // Compares five random elements of each tensor with central differences of the fp64 loss.
  const std::uint64_t key = random_key(17, RandomPurpose::sampling);
  for (const Parameter& parameter : s.reference.table.all()) {
    double largest = 0;
    for (std::int64_t i = 0; i < parameter.count; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(s.gradients->data()[parameter.offset + i])));
    EXPECT_GT(largest, 0) << parameter.name;
    for (std::int64_t trial = 0; trial < 5; ++trial) {
      const auto i = static_cast<std::int64_t>(random_uniform(key, static_cast<std::uint64_t>(trial)) *
                                               static_cast<double>(parameter.count));
      const auto at = static_cast<std::size_t>(parameter.offset + i);
      const double step = 1e-5, kept = s.w[at];
      double loss[2];
      for (int k = 0; k < 2; ++k) {
        s.w[at] = kept + (k == 0 ? step : -step);
        std::vector<double> fresh = state_before;
        loss[k] = s.reference.loss(s.w, s.x, s.y, s.c.rows, s.pass, s.c.state ? &fresh : nullptr);
      }
      s.w[at] = kept;
      const double expected = (loss[0] - loss[1]) / (2 * step);
      EXPECT_NEAR(s.gradients->data()[at], expected, 1e-6 + 2e-4 * largest) << parameter.name << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CharLstm,
                         testing::Values(ShapeCase{8, 1, 5, 3, 4, 1}, ShapeCase{16, 2, 7, 4, 5, 2},
                                         ShapeCase{33, 3, 31, 5, 7, 2}, ShapeCase{16, 2, 7, 4, 70, 1},
                                         ShapeCase{20, 2, 40, 3, 131, 2}, ShapeCase{16, 3, 9, 4, 6, 2, 0.4},
                                         ShapeCase{150, 2, 9, 3, 3, 1, 0.25}, ShapeCase{16, 2, 7, 4, 5, 2, 0, true},
                                         ShapeCase{24, 3, 254, 2, 9, 2, 0.1, true, 3}),
                         [](const auto& information) { return "Case" + std::to_string(information.index); });

TEST(Engine, AccumulatingTwoHalvesEqualsTheWhole) {
  Bench whole(ShapeCase{16, 3, 9, 4, 24, 2, 0.3});
  auto program = whole.program(Precision::fp32);
  const LossSums all = run(*program, whole.pass);
  program->backward(*whole.gradients, false, {});

  Bench half(ShapeCase{16, 3, 9, 4, 24, 2, 0.3});
  auto small = half.backend->compile(half.graph, 12, Precision::fp32, PassMode::training);
  small->allocate();
  small->set_weights(*half.weights);
  double loss = 0;
  for (int part = 0; part < 2; ++part) {
    TestPass pass = half.pass;
    pass.inputs += part * 12 * 4;
    pass.targets += part * 12 * 4;
    pass.first_row += part * 12;
    loss += run(*small, pass).loss;
    small->backward(*half.gradients, part > 0, {});
  }
  EXPECT_NEAR(loss, all.loss, 1e-6 * all.loss);
  for (std::int64_t i = 0; i < half.gradients->size(); ++i)
    ASSERT_NEAR(half.gradients->data()[i], whole.gradients->data()[i], 1e-7) << i;
}

TEST(Engine, InferenceGivesTheLossOfTrainingWithoutDropout) {
  Bench s(ShapeCase{16, 3, 9, 4, 24, 2});
  const double trained = run(*s.program(Precision::fp32), s.pass).loss;
  auto program = s.program(Precision::fp32, PassMode::inference);
  const LossSums sums = run(*program, s.pass);
  EXPECT_NEAR(sums.loss, trained, 1e-6 * trained);
  // The loss must follow from these logits.
  double loss = 0;
  for (std::int64_t r = 0; r < 24; ++r)
    for (std::int64_t t = 0; t < 4; ++t) {
      const std::vector<float> z = program->logits(r, t);
      double total = 0;
      for (float v : z) total += std::exp(static_cast<double>(v));
      loss += std::log(total) - static_cast<double>(z[s.y[static_cast<std::size_t>(r * 4 + t)]]);
    }
  EXPECT_NEAR(loss, trained, 1e-5 * trained);
}

TEST(Engine, Bf16FollowsFp32) {
  Bench s(ShapeCase{64, 3, 31, 6, 40, 2, 0.1});
  std::unique_ptr<Program> low;
  try {
    low = s.program(Precision::bf16);
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("AVX-512 BF16"), std::string::npos);
    GTEST_SKIP() << e.what();
  }
  auto high = s.program(Precision::fp32);
  const LossSums a = run(*high, s.pass), b = run(*low, s.pass);
  EXPECT_NEAR(a.loss, b.loss, 2e-3 * a.loss);
  EXPECT_NE(a.loss, b.loss);
  high->backward(*s.gradients, false, {});
  auto other = s.backend->make_vector(s.gradients->size());
  low->backward(*other, false, {});
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < other->size(); ++i) {
    difference += std::pow(static_cast<double>(other->data()[i] - s.gradients->data()[i]), 2);
    norm += std::pow(static_cast<double>(s.gradients->data()[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 0.02);
}

TEST(Engine, MemoryPredictedEqualsMemoryTaken) {
  for (PassMode mode : {PassMode::training, PassMode::inference}) {
    Bench s(ShapeCase{48, 2, 31, 8, 100, 2, 0.1});
    const std::int64_t before = s.backend->allocated_bytes();
    auto program = s.backend->compile(s.graph, 100, Precision::fp32, mode);
    EXPECT_EQ(s.backend->allocated_bytes(), before) << "compiling takes no memory";
    std::int64_t predicted = 0;
    for (const MemoryItem& item : program->memory()) predicted += item.bytes;
    program->allocate();
    EXPECT_EQ(s.backend->allocated_bytes() - before, predicted);
    program.reset();
    EXPECT_EQ(s.backend->allocated_bytes(), before);
  }
}

// Every node that the engine does not know would be missing from the results without a word.
TEST(Engine, RefusesGraphsWithNodesThatItCannotCompile) {
  const auto compiles = [](const auto& describe) {
    Graph g;
    describe(g, g.lstm(g.tokens(4, 7), 16, "lstm", 0));
    make_cpu_backend(1)->compile(g, 3, Precision::fp32, PassMode::training);
  };
  const auto end = [](Graph& g, int x) { g.cross_entropy(g.dense(x, 7, "linear")); };
  EXPECT_NO_THROW(compiles(end));
  EXPECT_NO_THROW(compiles([&](Graph& g, int x) { end(g, g.dropout(x, 0.1, 0)); }));
  const std::vector<std::function<void(Graph&, int)>> refused = {
      [&](Graph& g, int x) { end(g, g.relu(x)); },
      [&](Graph& g, int x) { end(g, g.group_norm(x, 4, "norm")); },
      [&](Graph& g, int x) { end(g, g.add(x, x)); },
      [&](Graph& g, int x) { end(g, g.dropout(g.dropout(x, 0.1, 0), 0.1, 1)); },
      [&](Graph& g, int x) { end(g, g.dense(x, 16, "hidden")); },
      [&](Graph& g, int x) { end(g, g.lstm(g.dense(x, 16, "hidden"), 16, "lstm", 1)); },
      [&](Graph& g, int x) { end(g, x), end(g, x); },
      [](Graph& g, int x) { g.dense(x, 7, "linear"); },
      [](Graph& g, int x) { g.cross_entropy(x); },
      [](Graph& g, int x) { g.cross_entropy(g.dense(x, 7, "linear"), 0.1); },
  };
  for (std::size_t i = 0; i < refused.size(); ++i) EXPECT_THROW(compiles(refused[i]), Error) << "graph " << i;
}

TEST(Engine, PetNameModelHas482719Parameters) {
  EXPECT_EQ(char_lstm({"char_lstm", 128, 4, 0.1}, {8, 31}).parameters().count(), 482719);
}

TEST(Engine, NotFiniteWeightsShowInTheLoss) {
  Bench s(ShapeCase{16, 2, 7, 4, 5, 1});
  s.weights->data()[s.reference.table.find("lstm.weight_hh_l0").offset] = NAN;
  EXPECT_FALSE(std::isfinite(run(*s.program(Precision::fp32), s.pass).loss));
}

// Without a limit, oneDNN would start a thread for each CPU of the process.
TEST(Engine, StartsNoMoreThreadsThanItWasGiven) {
  const auto threads = [] {
    const std::filesystem::directory_iterator all("/proc/self/task");
    return std::distance(begin(all), end(all));
  };
  std::thread([&] {  // OpenMP keeps a team per thread, and a new thread has none yet
    omp_set_num_threads(3);
    const auto before = threads();
    Bench s(ShapeCase{128, 2, 31, 16, 64, 1});
    auto program = s.program(Precision::fp32);
    run(*program, s.pass);
    program->backward(*s.gradients, false, {});
    program->set_weights(*s.weights);
    EXPECT_EQ(threads(), before);
    EXPECT_EQ(omp_get_max_threads(), 3) << "the caller's own";
  })
      .join();
}

}  // namespace
}  // namespace ringtrain
