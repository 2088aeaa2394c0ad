// Tests groups of batch norm that lie on several ranks, which are threads here. The parts that the ranks' programs
// compute must add up to one pass over the whole group in fp64.
#include <barrier>
#include <thread>

#include "backend/cpu/processor.h"
#include "base/error.h"
#include "cluster/communicator.h"
#include "tests/unit/images.h"

namespace ringtrain {
namespace {

// One of several ranks that are threads of this process.
class ThreadNormTeam : public NormTeam {
 public:
  struct Meeting {
    explicit Meeting(int ranks) : barrier(ranks), parts(static_cast<std::size_t>(ranks)) {}
    std::barrier<> barrier;
    std::vector<std::vector<double>> parts;
  };
  ThreadNormTeam(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.parts.size()); }
  void gather(std::span<double> parts, const std::function<void()>& poll) override {
    const std::size_t length = parts.size() / meeting_.parts.size();
    const auto mine = parts.subspan(static_cast<std::size_t>(rank_) * length, length);
    meeting_.parts[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    meeting_.barrier.arrive_and_wait();
    for (std::size_t r = 0; r < meeting_.parts.size(); ++r)
      std::ranges::copy(meeting_.parts[r], parts.begin() + static_cast<std::ptrdiff_t>(r * length));
    meeting_.barrier.arrive_and_wait();
    if (poll) poll();
  }

 private:
  Meeting& meeting_;
  int rank_;
};

struct SpanCase {
  const char* name;
  Graph graph;
  std::int64_t rows, group, span;
};
std::ostream& operator<<(std::ostream& out, const SpanCase& c) {
  return out << c.name;
}

std::vector<SpanCase> span_cases() {
  return {
      {"ResNet18OnTwo", small_resnet(18, 16, "small", 24), 8, 8, 2},
      {"ResNet18OnFourTwoGroups", small_resnet(18, 16, "imagenet", 64), 8, 4, 4},
      {"ResNet18OddChannels", small_resnet(18, 10, "imagenet", 75, 0.1), 6, 6, 2},
      {"ResNet50ProjectionsOnTwo", small_resnet(50, 12, "small", 20), 4, 4, 2},
      {"ResNet50TwoGroups", small_resnet(50, 16, "imagenet", 64, 0, 11, "1x1"), 12, 6, 2},
      {"AlexNetLikeWithDropout", small_alexnet(0.5, true), 8, 4, 2},
      {"OneRowEach", small_resnet(18, 16, "small", 33), 4, 4, 4},
  };
}

class NormSpan : public testing::TestWithParam<SpanCase> {
 protected:
  struct Result {
    LossSums sums;
    std::vector<double> gradients;               // summed over all ranks
    std::vector<std::vector<float>> statistics;  // for each rank: the running statistics' part of its vector
    int polls = 0;                               // in rank 0's last backward pass
  };
  static Result run_on_ranks(Images& s, std::int64_t span, Precision precision) {
    ThreadNormTeam::Meeting meeting(static_cast<int>(span));
    const std::int64_t micro_batch = s.group / span;
    Result result;
    result.gradients.resize(static_cast<std::size_t>(s.table.size()));
    result.statistics.resize(static_cast<std::size_t>(span));
    std::vector<LossSums> sums(static_cast<std::size_t>(span));
    std::vector<std::vector<float>> gradients(static_cast<std::size_t>(span));
    std::vector<std::thread> threads;
    for (std::int64_t rank = 0; rank < span; ++rank)
      threads.emplace_back([&, rank] {
        const auto backend = make_cpu_backend(1);
        const auto program = backend->compile(s.graph, micro_batch, precision, PassMode::training, s.group);
        program->allocate();
        program->set_weights(*s.weights);
        const auto own = backend->make_vector(s.table.size());
        ThreadNormTeam ranks(meeting, static_cast<int>(rank));
        int polls = 0;
        for (std::int64_t first = 0; first < s.rows; first += s.group) {
          TestPass part = s.part(first + rank * micro_batch);
          part.statistic_scale = s.pass.statistic_scale / static_cast<float>(span);
          part.norm_team = &ranks;
          sums[static_cast<std::size_t>(rank)] += run(*program, part);
          program->backward(*own, first > 0, {{}, [&] { ++polls; }});
        }
        gradients[static_cast<std::size_t>(rank)].assign(own->data(), own->data() + s.table.size());
        if (rank == 0) result.polls = polls;
      });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      result.sums += sums[rank];
      for (std::size_t i = 0; i < result.gradients.size(); ++i)
        result.gradients[i] += static_cast<double>(gradients[rank][i]);
      result.statistics[rank].assign(gradients[rank].begin() + s.table.trained(), gradients[rank].end());
    }
    return result;
  }
};

TEST_P(NormSpan, OnRanksEqualsFp64LoopsOverWholeGroups) {
  const SpanCase& c = GetParam();
  Images s(c.graph, c.rows, c.group);
  const ImageResult expected = s.expected();
  const Result result = run_on_ranks(s, c.span, Precision::fp32);
  EXPECT_NEAR(result.sums.loss, expected.loss, 1e-5 * expected.loss);
  EXPECT_EQ(result.sums.correct, expected.correct);
  EXPECT_EQ(result.sums.targets, expected.targets);
  expect_same_tensors(s.table, result.gradients.data(), expected.gradients.data(), 5e-5);
  for (const std::vector<float>& statistics : result.statistics)
    EXPECT_EQ(statistics, result.statistics.front()) << "the ranks have other bits";
  EXPECT_GT(result.polls, 0);
}

// The two results are closer to each other than to fp64, because only the order of a few sums differs.
TEST_P(NormSpan, OnRanksEqualsOneRank) {
  const SpanCase& c = GetParam();
  Images s(c.graph, c.rows, c.group);
  const auto program = s.program();
  run(*program, s.pass);
  program->backward(*s.gradients, false, {});
  const Result result = run_on_ranks(s, c.span, Precision::fp32);
  expect_same_tensors(s.table, result.gradients.data(), s.gradients->data(), 1e-5);
}

TEST_P(NormSpan, InBf16IsWithinItsRoundings) {
  if (cpu::best_isa() != cpu::Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
  const SpanCase& c = GetParam();
  Images s(c.graph, c.rows, c.group);
  const auto program = s.program(Precision::bf16);
  const LossSums sums = run(*program, s.pass);
  program->backward(*s.gradients, false, {});
  const Result result = run_on_ranks(s, c.span, Precision::bf16);
  EXPECT_NEAR(result.sums.loss, sums.loss, 1e-2 * sums.loss);
  EXPECT_LE(relative_difference(result.gradients.data(), s.gradients->data(), s.table.trained()), 0.05);
}

INSTANTIATE_TEST_SUITE_P(Networks, NormSpan, testing::ValuesIn(span_cases()),
                         [](const auto& information) { return information.param.name; });

TEST(NormSpanProgram, NeedsItsRanks) {
  Images s(small_resnet(18, 16, "small", 16), 4, 4);
  const auto program = s.backend->compile(s.graph, 2, Precision::fp32, PassMode::training, 4);
  program->allocate();
  program->set_weights(*s.weights);
  EXPECT_THROW(run(*program, s.pass), Error);
  EXPECT_THROW(s.backend->compile(s.graph, 3, Precision::fp32, PassMode::training, 4), Error);
}

TEST(NormSpanProgram, TakesTheMemoryThatItSays) {
  Images s(small_resnet(18, 16, "small", 16), 4, 4);
  const auto program = s.backend->compile(s.graph, 2, Precision::fp32, PassMode::training, 4);
  std::int64_t predicted = 0;
  for (const MemoryItem& item : program->memory()) predicted += item.bytes;
  const std::int64_t before = s.backend->allocated_bytes();
  program->allocate();
  EXPECT_EQ(s.backend->allocated_bytes() - before, predicted);
}

TEST(NormSpanNodes, RanksOfAWorkerAreOnOneNode) {
  EXPECT_NO_THROW(check_norm_teams({"a", "a", "b", "b"}, 2));
  EXPECT_NO_THROW(check_norm_teams({"a", "b", "a", "b"}, 1));
  EXPECT_NO_THROW(check_norm_teams({"a", "a", "a", "a"}, 4));
  try {
    check_norm_teams({"a", "a", "a", "b"}, 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "ranks 2 and 3 share a virtual worker of batch norm (batch.worker), but are on a and b, "
                 "expected one node for each 2 neighbouring ranks");
    EXPECT_NE(error.hint().find("a multiple of 2 ranks on every node"), std::string::npos) << error.hint();
  }
}

}  // namespace
}  // namespace ringtrain
