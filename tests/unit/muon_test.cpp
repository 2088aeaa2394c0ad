// Tests Muon on the CPU and on a device. It is compared with a float64 program that is close to torch.optim.Muon
// (tests/golden/make_muon.py). Other tests check which tensors are matrices and how ranks share them.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "models/models.h"
#include "tests/unit/golden.h"
#include "tests/unit/optimizer_training.h"

namespace ringtrain {
namespace {

using nlohmann::json;

ParameterTable table_of(const json& tensors) {
  ParameterTable table;
  for (const json& t : tensors) {
    Parameter p{t.at("name"), t.at("size"), kind_of(t.at("kind")), InitialValues::constant, 0};
    p.is_outer = t.at("outer");
    table.append(p);
  }
  return table;
}

// Runs 20 steps with a loss scale, across changes of the rate and a skipped step at which the rate changes. Muon's
// matrices are wide, tall and square, and some are convolutions. AdamW or SGD updates the norms, the biases, and the
// first and the last layer.
TEST(Muon, IsTheFloat64Program) {
  constexpr float loss_scale = 8;
  const json all = golden("muon.json");
  const ParameterTable table = table_of(all.at("tensors"));
  const std::vector<double> start = values(all.at("start")), given = values(all.at("gradients"));
  const std::vector<std::size_t> shown = all.at("shown");
  const std::size_t n = start.size(), skipped = all.at("skipped");
  ASSERT_GE(all.at("cases").size(), 4u);
  for (const json& c : all.at("cases"))
    on_cpu_and_device([&](Backend& backend) {
      SCOPED_TRACE(c.at("name").get<std::string>());
      Training training(backend, table, config_of(c));
      training.set(*training.weights, start);
      const std::vector<double> rates = c.at("rates"), expected = values(c.at("weights"));
      std::size_t row = 0;
      for (std::size_t step = 0; step < rates.size(); ++step) {
        const bool overflows = step == skipped;
        training.set(*training.gradients, std::span(given).subspan(step * n, n),
                     overflows ? std::numeric_limits<double>::infinity() : loss_scale);
        EXPECT_EQ(training.update({rates[step]}, loss_scale).applied, !overflows);
        if (row == shown.size() || step != shown[row]) continue;
        const std::vector<double> actual = training.get(*training.weights);
        for (std::size_t i = 0; i < n; ++i) {
          const double wanted = expected[row * n + i];
          ASSERT_NEAR(actual[i], wanted, 2e-5 * (1 + std::abs(wanted))) << "step " << step << ", element " << i;
        }
        ++row;
      }
      EXPECT_EQ(row, shown.size());
    });
}

std::vector<float> drawn(std::int64_t count, std::uint64_t key) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < count; ++i)
    result.push_back(static_cast<float>(random_normal(key, static_cast<std::uint64_t>(i))));
  return result;
}

// Carries out Muon's five Newton-Schulz steps with plain loops in double precision.
std::vector<double> orthogonal(std::span<const float> u, std::int64_t rows, std::int64_t columns) {
  std::vector<double> x(u.begin(), u.end());
  double norm = 0;
  for (const double v : x) norm += v * v;
  for (double& v : x) v /= std::max(std::sqrt(norm), 1e-7);
  const bool tall = rows > columns;
  const std::int64_t s = std::min(rows, columns), l = std::max(rows, columns);
  const auto at = [&](std::int64_t i, std::int64_t j) -> double& {  // element of the wide form
    return x[static_cast<std::size_t>(tall ? j * columns + i : i * columns + j)];
  };
  for (int step = 0; step < 5; ++step) {
    const auto n = static_cast<std::size_t>(s);
    std::vector<double> gram(n * n), b(n * n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        for (std::int64_t k = 0; k < l; ++k)
          gram[i * n + j] += at(static_cast<std::int64_t>(i), k) * at(static_cast<std::int64_t>(j), k);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        b[i * n + j] = -4.7750 * gram[i * n + j];
        for (std::size_t k = 0; k < n; ++k) b[i * n + j] += 2.0315 * gram[i * n + k] * gram[k * n + j];
      }
    const std::vector<double> before = x;
    for (std::int64_t i = 0; i < s; ++i)
      for (std::int64_t k = 0; k < l; ++k) {
        double sum = 3.4445 * before[static_cast<std::size_t>(tall ? k * columns + i : i * columns + k)];
        for (std::int64_t j = 0; j < s; ++j)
          sum += b[static_cast<std::size_t>(i * s + j)] *
                 before[static_cast<std::size_t>(tall ? k * columns + j : j * columns + k)];
        at(i, k) = sum;
      }
  }
  return x;
}

const std::vector<MatrixRange> shapes = {{0, 48, 70}, {3392, 70, 33}, {5760, 40, 40}, {7360, 1, 90}, {7488, 64, 1}};
constexpr std::int64_t shapes_size = 7552;

TEST(Muon, MatricesAreOrthogonalisedAsInDouble) {
  on_cpu_and_device([](Backend& backend) {
    const std::vector<float> before = drawn(shapes_size, 5);
    const auto values = backend.make_vector(shapes_size);
    backend.copy_from_host(before, *values, 0);
    const auto orthogonalizer = backend.make_orthogonalizer(shapes);
    orthogonalizer->allocate();
    orthogonalizer->run(*values);
    std::vector<float> after(before.size());
    backend.copy_to_host(*values, 0, after);
    std::vector<bool> covered(after.size());
    for (const MatrixRange& m : shapes) {
      const auto begin = static_cast<std::size_t>(m.begin), count = static_cast<std::size_t>(m.count());
      const std::vector<double> expected = orthogonal(std::span(before).subspan(begin, count), m.rows, m.columns);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_NEAR(after[begin + i], expected[i], 5e-6) << m.rows << " x " << m.columns << ", element " << i;
        covered[begin + i] = true;
      }
    }
    for (std::size_t i = 0; i < after.size(); ++i)
      ASSERT_TRUE(covered[i] || after[i] == before[i]) << "between the matrices, " << i;
  });
}

// Ranks may have different numbers of CPUs, for example when a launcher binds some of them to cores.
TEST(Muon, AMatrixHasTheSameBitsOnAnyNumberOfCpus) {
  const std::vector<MatrixRange> matrix = {{0, 64, 288}};
  const std::vector<float> before = drawn(matrix[0].count(), 5);
  const auto made = [&](int cpus) {
    const auto backend = make_cpu_backend(1);
    const auto values = backend->make_vector(matrix[0].count());
    backend->copy_from_host(before, *values, 0);
    const int threads_before = omp_get_max_threads();
    omp_set_num_threads(cpus);
    const auto orthogonalizer = backend->make_orthogonalizer(matrix);
    orthogonalizer->allocate();
    orthogonalizer->run(*values);
    omp_set_num_threads(threads_before);
    return std::vector<float>(values->data(), values->data() + matrix[0].count());
  };
  const std::vector<float> expected = made(1);
  EXPECT_EQ(made(2), expected);
  EXPECT_EQ(made(4), expected);
}

// This property lets any number of ranks and threads share the matrices.
TEST(Muon, AMatrixHasTheSameBitsOnAnyNumberOfThreadsAndBesideAnyOthers) {
  const std::vector<float> before = drawn(shapes_size, 5);
  const auto made = [&](int threads, bool apart) {
    const auto backend = make_cpu_backend(threads);
    const auto values = backend->make_vector(shapes_size);
    backend->copy_from_host(before, *values, 0);
    for (std::size_t i = 0; i < (apart ? shapes.size() : 1); ++i) {
      const auto orthogonalizer = backend->make_orthogonalizer(apart ? std::span(shapes).subspan(i, 1) : shapes);
      orthogonalizer->allocate();
      orthogonalizer->run(*values);
    }
    return std::vector<float>(values->data(), values->data() + shapes_size);
  };
  const std::vector<float> expected = made(1, false);
  EXPECT_EQ(made(3, false), expected);
  EXPECT_EQ(made(2, true), expected);
}

TEST(Muon, TakesTheMemoryThatItSaysAndNoneBefore) {
  on_cpu_and_device([](Backend& backend) {
    const std::int64_t before = backend.allocated_bytes();
    const auto orthogonalizer = backend.make_orthogonalizer(shapes);
    EXPECT_EQ(backend.allocated_bytes(), before);
    orthogonalizer->allocate();
    EXPECT_EQ(backend.allocated_bytes() - before, orthogonalizer->bytes());
    EXPECT_GT(orthogonalizer->bytes(), 4 * 70 * 48);
    backend.make_orthogonalizer({})->allocate();  // a rank without a share
  });
}

std::set<std::string> others_of(const Graph& graph) {
  std::set<std::string> names;
  const ParameterTable table = graph.parameters();
  for (const Parameter& p : table.all())
    if (p.kind == ParameterKind::weight && !is_muons(p)) names.insert(p.name);
  return names;
}

// All other weights are Muon's, and no other parameters are.
TEST(Muon, TheFirstAndTheLastLayerOfEveryModelHaveAnotherOptimizer) {
  using Names = std::set<std::string>;
  const std::vector<double> mean = {0.5, 0.5, 0.5}, std = {0.25, 0.25, 0.25};
  const SampleShape text{.sequence = 5, .vocabulary = 9}, image{0, 0, 64, 10, mean, std};
  const auto model = [&](const std::string& kind) {
    return build_model({.kind = kind, .layers = 2, .depth = 18, .norm = true}, kind == "char_lstm" ? text : image, {});
  };
  EXPECT_EQ(others_of(model("char_lstm")), (Names{"lstm.weight_ih_l0", "linear.weight"}));
  EXPECT_EQ(others_of(model("resnet")), (Names{"conv1.weight", "fc.weight"}));
  EXPECT_EQ(others_of(model("alexnet")), (Names{"features.0.weight", "classifier.6.weight"}));
  EXPECT_EQ(others_of(model("cnn")), (Names{"conv1.weight", "fc.weight"}));
  const ParameterTable resnet = model("resnet").parameters();
  const MuonLayout layout = muon_layout(resnet, 1);
  auto matrix = layout.matrices.begin();
  for (const Parameter& p : resnet.all())
    if (is_muons(p)) {
      EXPECT_EQ(p.kind, ParameterKind::weight) << p.name;
      ASSERT_NE(matrix, layout.matrices.end());
      EXPECT_EQ(*matrix, (MatrixRange{matrix->begin, p.shape[0], p.count / p.shape[0]})) << p.name;
      ++matrix;
    }
  EXPECT_EQ(matrix, layout.matrices.end());
}

TEST(Muon, RanksShareTheMatricesByWhatTheyCost) {
  const ParameterTable table =
      build_model({.kind = "resnet", .depth = 50}, {0, 0, 64, 10, {0, 0, 0}, {1, 1, 1}}, {}).parameters();
  const MuonLayout alone = muon_layout(table, 1);
  ASSERT_EQ(alone.matrices.size(), 52u);
  const auto cost = [](const MatrixRange& m) {
    return static_cast<double>(m.small()) * static_cast<double>(m.small()) *
           static_cast<double>(std::max(m.rows, m.columns));
  };
  double whole = 0;
  for (const MatrixRange& m : alone.matrices) whole += cost(m);
  for (const int ranks : {1, 2, 4, 100}) {
    SCOPED_TRACE(ranks);
    const MuonLayout layout = muon_layout(table, ranks);
    EXPECT_EQ(layout.size, alone.size);
    ASSERT_EQ(layout.matrices.size(), alone.matrices.size());
    std::int64_t end = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const ElementRange share = layout.shares[static_cast<std::size_t>(rank)];
      EXPECT_EQ(share.begin, end);
      end = share.end;
      double own = 0;
      for (const MatrixRange& m : layout.of(rank)) {
        EXPECT_GE(m.begin, share.begin);
        EXPECT_LE(m.begin + m.count(), share.end);
        EXPECT_EQ(m.begin % 64, 0);
        own += cost(m);
      }
      EXPECT_LT(own, ranks <= 4 ? whole / ranks + 0.02 * whole : 0.3 * whole);
    }
    EXPECT_EQ(end, layout.size);
  }
}

TEST(Muon, StateHasTheNamesOfTheOptimizerThatATensorHas) {
  using Names = std::vector<std::string>;
  Parameter hidden{"h", {3, 4}, ParameterKind::weight, InitialValues::constant, 0}, outer = hidden, bias = hidden;
  outer.is_outer = true;
  bias.kind = ParameterKind::bias;
  for (const Parameter& p : {outer, bias}) {
    EXPECT_EQ(Optimizer::state_names({.kind = "muon"}, p), (Names{"exp_avg", "exp_avg_sq"}));
    EXPECT_EQ(Optimizer::state_names({.kind = "muon", .other_kind = "sgd"}, p), Names{"momentum"});
  }
  EXPECT_EQ(Optimizer::state_names({.kind = "muon"}, hidden), (Names{"momentum", ""}));
  EXPECT_EQ(Optimizer::state_names({.kind = "muon", .other_kind = "sgd"}, hidden), Names{"momentum"});
  EXPECT_EQ(Optimizer::state_names({.kind = "adam"}, hidden), (Names{"exp_avg", "exp_avg_sq"}));
}

}  // namespace
}  // namespace ringtrain
