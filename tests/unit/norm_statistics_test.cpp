// Tests forward passes that measure batch norm's statistics. The CPU's are compared with fp64 loops, and a device's
// with the CPU's.
#include <gtest/gtest.h>

#include "backend/cpu/processor.h"
#include "tests/unit/cuda_training.h"

namespace ringtrain {
namespace {

struct StatisticsCase {
  const char* name;
  Graph graph;
  std::int64_t rows, group;
};
std::ostream& operator<<(std::ostream& out, const StatisticsCase& c) {
  return out << c.name;
}

// The expected statistics come from training passes, which have dropout. The last model therefore has its dropout after
// its last norm.
std::vector<StatisticsCase> statistics_cases() {
  return {
      {"ResNet18FourGroups", small_resnet(18, 16, "imagenet", 64), 8, 2},
      {"ResNet18OddSizesOddChannels", small_resnet(18, 10, "imagenet", 75, 0.1), 6, 3},
      {"ResNet50OneGroup", small_resnet(50, 12, "small", 20), 4, 4},
      {"ResNet50StrideInTheFirst", small_resnet(50, 12, "imagenet", 64, 0, 3, "1x1"), 4, 2},
      {"OneRow", small_resnet(18, 16, "small", 33), 2, 1},
      {"AlexNetLike", small_alexnet(0.5, true), 6, 3},
  };
}

class NormStatistics : public testing::TestWithParam<StatisticsCase> {};

// Returns the expected statistics: the groups' means added up, and their mean squares added up. They follow from the
// means and unbiased variances in the reference's training.
std::vector<double> expected_statistics(const Images& s) {
  std::vector<double> sums(static_cast<std::size_t>(s.table.size()));
  for (std::int64_t first = 0; first < s.rows; first += s.group) {
    TestPass part = s.part(first);
    part.statistic_scale = 1;
    const std::vector<double> group = run_reference(s.graph, s.w, part, s.group, s.group, PassMode::training).gradients;
    for (const Node& node : s.graph.nodes()) {
      const auto* norm = std::get_if<Norm>(&node.operation);
      if (norm == nullptr) continue;
      const auto values = static_cast<double>(s.group * node.output.height * node.output.width);
      const std::int64_t mean = s.table.find(norm->running_mean).offset,
                         square = s.table.find(norm->running_var).offset;
      for (std::int64_t c = 0; c < norm->channels; ++c) {
        const double m = group[static_cast<std::size_t>(mean + c)], v = group[static_cast<std::size_t>(square + c)];
        sums[static_cast<std::size_t>(mean + c)] += m;
        sums[static_cast<std::size_t>(square + c)] += m * m + v * (values - 1) / values;
      }
    }
  }
  return sums;
}

void expect_same_statistics(const Images& s, const std::vector<float>& actual, const std::vector<double>& expected,
                            double tolerance) {
  ASSERT_EQ(std::ssize(actual), s.table.size() - s.table.trained());
  for (const Parameter& p : s.table.all()) {
    if (p.kind != ParameterKind::statistic) continue;
    EXPECT_LE(relative_difference(actual.data() + p.offset - s.table.trained(), expected.data() + p.offset, p.count),
              tolerance)
        << p.name;
  }
}

TEST_P(NormStatistics, EqualFp64Loops) {
  const StatisticsCase& c = GetParam();
  Images s(c.graph, c.rows, c.group);
  const std::vector<double> expected = expected_statistics(s);
  auto program = s.program(Precision::fp32, PassMode::statistics);
  for (int time = 0; time < 2; ++time) {  // the second pass must not add to the first
    run(*program, s.pass);
    expect_same_statistics(s, program->statistics(), expected, 2e-5);
  }
  // Passes of one group each give the same total.
  auto small = s.program(Precision::fp32, PassMode::statistics, c.group);
  std::vector<float> sums(static_cast<std::size_t>(s.table.size() - s.table.trained()));
  for (std::int64_t first = 0; first < c.rows; first += c.group) {
    run(*small, s.part(first));
    const std::vector<float> part = small->statistics();
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  }
  expect_same_statistics(s, sums, expected, 2e-5);
}

TEST_P(NormStatistics, OfADeviceEqualTheCpus) {
  const StatisticsCase& c = GetParam();
  Images s(c.graph, c.rows, c.group);
  const std::vector<double> expected = expected_statistics(s);
  for (const auto& [precision, tolerance] :
       {std::pair{Precision::fp32, 1e-4}, {Precision::tf32, 0.05}, {Precision::fp16, 0.05}}) {
    SCOPED_TRACE(precision_name(precision));
    cuda::HostDevice device;
    const auto backend = cuda::make_backend(device, {});
    const auto weights = backend->make_vector(s.table.size());
    backend->copy_from_host(std::vector<float>(s.w.begin(), s.w.end()), *weights, 0);
    const auto program = backend->compile(s.graph, s.rows, precision, PassMode::statistics, s.group);
    program->allocate();
    program->set_weights(*weights);
    const PageVector<std::uint8_t> x(s.x.begin(), s.x.end());
    const PageVector<std::int32_t> y(s.y.begin(), s.y.end());
    backend->pin(pages_of(x));
    backend->pin(pages_of(y));
    for (int time = 0; time < 3; ++time) {  // plain, then captured, then replayed
      program->run({x.data(), y.data()});
      expect_same_statistics(s, program->statistics(), expected, tolerance);
    }
    backend->unpin(pages_of(x));
    backend->unpin(pages_of(y));
  }
}

TEST_P(NormStatistics, OfBf16AreWithinItsRoundings) {
  if (cpu::best_isa() != cpu::Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
  const StatisticsCase& c = GetParam();
  Images s(c.graph, c.rows, c.group);
  auto program = s.program(Precision::bf16, PassMode::statistics);
  run(*program, s.pass);
  expect_same_statistics(s, program->statistics(), expected_statistics(s), 0.3);
}

// A statistics program keeps nothing for gradients, so it needs less memory than a training program.
TEST_P(NormStatistics, NeedLessMemoryThanTraining) {
  const StatisticsCase& c = GetParam();
  Images s(c.graph, c.rows, c.group);
  const auto bytes = [&](PassMode mode) {
    std::int64_t sum = 0;
    for (const MemoryItem& item : s.backend->compile(s.graph, s.rows, Precision::fp32, mode, s.group)->memory())
      sum += item.bytes;
    return sum;
  };
  EXPECT_LT(bytes(PassMode::statistics), bytes(PassMode::training));
}

// The model has dropout, which a statistics pass must leave out.
TEST(NormStatisticsPass, HasNoDropout) {
  const auto graph = [](double dropout) {
    Graph g;
    const SampleShape shape = image_shape(12, 5);
    int x = g.image(12, 12, shape.mean, shape.std);
    x = g.relu(g.batch_norm(g.convolution(x, 16, 3, 1, 1, "conv"), "bn"));
    x = g.dropout(g.flatten(x), dropout, 0);
    g.cross_entropy(g.dense(x, 5, "fc"));
    return g;
  };
  Images with(graph(0.5), 4, 2), without(graph(0), 4, 2);
  auto a = with.program(Precision::fp32, PassMode::statistics),
       b = without.program(Precision::fp32, PassMode::statistics);
  EXPECT_EQ(run(*a, with.pass).loss, run(*b, with.pass).loss);
}

INSTANTIATE_TEST_SUITE_P(Networks, NormStatistics, testing::ValuesIn(statistics_cases()),
                         [](const auto& information) { return information.param.name; });

}  // namespace
}  // namespace ringtrain
