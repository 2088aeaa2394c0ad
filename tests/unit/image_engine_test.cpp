// Compares the CPU engine's networks for images with fp64 loops (image_reference.h). The loops share only the graph and
// the random numbers of dropout with the engine. The file also tests the equalities on which training on any machine
// relies: groups of batch norm, accumulation, threads and instruction sets.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "backend/cpu/processor.h"
#include "base/error.h"
#include "tests/unit/images.h"
#include "tests/unit/with_environment.h"

namespace ringtrain {
namespace {

// The engine adds some thousand products in fp32, in tens of layers. Differences of 1e-6 to 1e-5 are usual.
constexpr double fp32_tolerance = 5e-5;

struct NetworkCase {
  const char* name;
  Graph graph;
  std::int64_t rows, group;
  int threads = 2;
  bool zero_gammas = false;
};

std::ostream& operator<<(std::ostream& out, const NetworkCase& c) {
  return out << c.name;
}

std::vector<NetworkCase> network_cases() {
  return {
      {"ResNet18SmallStem", small_resnet(18, 16, "small", 24), 8, 8},
      {"ResNet18ImageNetStemFourGroups", small_resnet(18, 16, "imagenet", 64), 8, 2},
      {"ResNet18OddSizesOddChannels", small_resnet(18, 10, "imagenet", 75, 0.1), 6, 3, 1},
      {"ResNet18ZeroGammas", small_resnet(18, 16, "small", 16), 4, 4, 2, true},
      {"ResNet34OneThread", small_resnet(34, 8, "small", 17), 6, 6, 1},
      {"ResNet50SmallStem", small_resnet(50, 16, "small", 20, 0.1), 4, 4},
      {"ResNet50ImageNetStem", small_resnet(50, 16, "imagenet", 64), 6, 6},
      {"ResNet50OddEverything", small_resnet(50, 12, "imagenet", 67, 0, 3), 9, 3},
      {"ResNet50StrideInTheFirst", small_resnet(50, 16, "imagenet", 64, 0, 11, "1x1"), 6, 3},
      {"Cnn", cnn({}, image_shape(19, 10), {0.1}), 5, 5},
      {"DescribedCnn", described_cnn(0.4), 5, 5},
      {"DescribedMlp", described_mlp(0.3), 7, 7},
      {"AlexNetLikeWithDropout", small_alexnet(0.5), 7, 7},
      {"AlexNetLikeWithNorms", small_alexnet(0.5, true), 8, 4},
      {"OneRow", small_resnet(18, 16, "small", 33), 1, 1},
      {"ResNet8", small_resnet(8, 16, "small", 20, 0.1), 6, 3},
      {"ResNet8GroupNorm", small_resnet(8, 16, "small", 20, 0.1, 11, "3x3", with_norms("group", 4)), 6, 6},
      {"ResNet8GroupNormOneRow", small_resnet(8, 16, "small", 20, 0.1, 11, "3x3", with_norms("group", 16)), 1, 1},
      {"ResNet8WithoutNorms", small_resnet(8, 16, "small", 20, 0.1, 11, "3x3", with_norms("none")), 6, 6},
      {"ResNet18GroupNormZeroGammas", small_resnet(18, 16, "imagenet", 64, 0, 11, "3x3", with_norms("group", 8)), 3, 3,
       2, true},
      {"ResNet50GroupNormOddChannels", small_resnet(50, 12, "imagenet", 67, 0, 3, "3x3", with_norms("group", 3)), 4, 4},
      {"CnnBatchNorm", described_cnn(0.4, with_norms("batch")), 6, 3},
      {"CnnGroupNorm", described_cnn(0.4, with_norms("group", 6)), 5, 5},
      {"CnnLayerNorm", described_cnn(0.4, with_norms("group", 1)), 5, 5, 1},
      {"MlpBatchNorm", described_mlp(0.3, with_norms("batch")), 12, 6},
      {"MlpGroupNorm", described_mlp(0.3, with_norms("group", 4)), 5, 5},
      {"MlpGroupNormWithoutDropoutOneRow", described_mlp(0, with_norms("group", 2)), 1, 1},
  };
}

class ImageEngine : public testing::TestWithParam<NetworkCase> {};

TEST_P(ImageEngine, EqualsFp64Loops) {
  const NetworkCase& c = GetParam();
  Images s(c.graph, c.rows, c.group, c.threads, c.zero_gammas);
  const ImageResult expected = s.expected();
  // These values stand for those of an earlier step, which this pass has to overwrite.
  for (const Parameter& p : s.table.all()) std::fill_n(s.gradients->data() + p.offset, p.count, 1e6f);

  auto program = s.program();
  const LossSums sums = run(*program, s.pass);
  program->backward(*s.gradients, false, {});
  EXPECT_NEAR(sums.loss, expected.loss, 1e-5 * expected.loss);
  EXPECT_EQ(sums.correct, expected.correct);
  EXPECT_EQ(sums.correct5, expected.correct5);
  EXPECT_EQ(sums.targets, expected.targets);
  expect_same_tensors(s.table, s.gradients->data(), expected.gradients.data(), fp32_tolerance);
  std::int64_t zeros = 0;
  for (const Parameter& p : s.table.all())
    for (std::int64_t i = p.offset + p.count; i % 64 != 0; ++i) zeros += s.gradients->data()[i] != 0;
  EXPECT_EQ(zeros, 0) << "values between the tensors, which the norm of the gradient would count";
}

TEST_P(ImageEngine, InferenceEqualsFp64Loops) {
  const NetworkCase& c = GetParam();
  Images s(c.graph, c.rows, c.group, c.threads, c.zero_gammas);
  if (c.rows > 2) s.y[2] = -1;
  const ImageResult expected = s.expected(PassMode::inference);
  auto program = s.program(Precision::fp32, PassMode::inference);
  const LossSums sums = run(*program, s.pass);
  EXPECT_NEAR(sums.loss, expected.loss, 1e-5 * expected.loss);
  EXPECT_EQ(sums.correct, expected.correct);
  EXPECT_EQ(sums.correct5, expected.correct5);
  EXPECT_EQ(sums.targets, c.rows > 2 ? c.rows - 1 : c.rows);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const std::vector<float> logits = program->logits(r, 0);
    ASSERT_EQ(std::ssize(logits), s.graph.classes());
    EXPECT_LE(relative_difference(logits.data(), expected.logits.data() + r * s.graph.classes(), s.graph.classes()),
              2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, ImageEngine, testing::ValuesIn(network_cases()),
                         [](const auto& information) { return information.param.name; });

Images four_groups(int threads = 2) {
  return {small_resnet(18, 16, "imagenet", 64, 0.1), 16, 4, threads};
}

// Accumulates the gradients of all passes in s.gradients. Returns the sums of their losses and counts.
LossSums run_in_parts(Images& s, Program& program) {
  LossSums total;
  for (std::int64_t first = 0; first < s.rows; first += program.micro_batch()) {
    const LossSums sums = run(program, s.part(first));
    program.backward(*s.gradients, first > 0, {});
    total.loss += sums.loss;
    total.correct += sums.correct;
    total.correct5 += sums.correct5;
    total.targets += sums.targets;
  }
  return total;
}

std::vector<float> copy(const Vector& v) {
  return {v.data(), v.data() + v.size()};
}

TEST(ImageEngineEquality, PassesOfOneGroupAccumulateToOnePassOfFourGroups) {
  Images s = four_groups();
  auto whole = s.program();
  const LossSums all = run_in_parts(s, *whole);
  const std::vector<float> expected = copy(*s.gradients);
  for (const std::int64_t micro_batch : {4, 8}) {
    auto program = s.program(Precision::fp32, PassMode::training, micro_batch);
    EXPECT_EQ(program->micro_batch(), micro_batch);
    const LossSums sums = run_in_parts(s, *program);
    EXPECT_NEAR(sums.loss, all.loss, 1e-6 * all.loss);
    EXPECT_EQ(sums.correct, all.correct);
    EXPECT_EQ(sums.correct5, all.correct5);
    EXPECT_EQ(sums.targets, all.targets);
    expect_same_tensors(s.table, s.gradients->data(), expected.data(), 5e-5);
  }
}

TEST(ImageEngineEquality, GroupsDoNotSeeEachOther) {
  Images s = four_groups();
  auto one = s.program(Precision::fp32, PassMode::training, 4), all = s.program();
  const double first = run(*one, s.part(0)).loss, second = run(*one, s.part(4)).loss;
  const double before = run(*all, s.pass).loss;
  // Other pixels in the second group must change the result of the second group only.
  for (std::int64_t i = 0; i < 4 * s.graph.input_bytes(); ++i)
    s.x[static_cast<std::size_t>(4 * s.graph.input_bytes() + i)] ^= 0xff;
  const double changed = run(*one, s.part(4)).loss, after = run(*all, s.pass).loss;
  EXPECT_NE(changed, second);
  EXPECT_NEAR(after - before, changed - second, 1e-5 * before);
  EXPECT_EQ(run(*one, s.part(0)).loss, first);
}

TEST(ImageEngineEquality, TheSamePassTwiceGivesTheSameBits) {
  for (const auto& graph : {small_resnet(50, 16, "imagenet", 64), small_alexnet(0.4)}) {
    Images s(graph, 8, 4);
    auto program = s.program();
    const double loss = run(*program, s.pass).loss;
    program->backward(*s.gradients, false, {});
    const std::vector<float> first = copy(*s.gradients);
    TestPass other = s.pass;  // a pass in between must leave nothing
    const std::vector<std::uint8_t> black(s.x.size(), 0);
    other.inputs = black.data();
    run(*program, other);
    program->backward(*s.gradients, false, {});
    EXPECT_NE(copy(*s.gradients), first);
    EXPECT_EQ(run(*program, s.pass).loss, loss);
    program->backward(*s.gradients, false, {});
    EXPECT_EQ(std::memcmp(s.gradients->data(), first.data(), first.size() * sizeof(float)), 0);
  }
}

TEST(ImageEngineEquality, OneThreadIsTwoThreadsIsThree) {
  Images one = four_groups(1);
  const LossSums expected = run_in_parts(one, *one.program());
  for (const int threads : {2, 3}) {
    Images s = four_groups(threads);
    const LossSums sums = run_in_parts(s, *s.program());
    EXPECT_NEAR(sums.loss, expected.loss, 1e-6 * expected.loss);
    EXPECT_EQ(sums.correct, expected.correct);
    expect_same_tensors(s.table, s.gradients->data(), one.gradients->data(), 5e-5);
  }
}

// Tests with the instruction sets that RINGTRAIN_ISA selects.
class WithIsa : public testing::TestWithParam<const char*> {
  const WithEnvironment environment_{{{"RINGTRAIN_ISA", GetParam()}}};
};

TEST_P(WithIsa, TheEngineEqualsFp64Loops) {
  try {
    cpu::best_isa();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  for (const auto& graph :
       {small_resnet(18, 20, "imagenet", 41, 0.1), small_resnet(50, 16, "small", 12), small_alexnet(0.5)}) {
    Images s(graph, 6, 3);
    const ImageResult expected = s.expected();
    auto program = s.program();
    EXPECT_NEAR(run(*program, s.pass).loss, expected.loss, 1e-5 * expected.loss);
    program->backward(*s.gradients, false, {});
    expect_same_tensors(s.table, s.gradients->data(), expected.gradients.data(), fp32_tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, WithIsa, testing::Values("baseline", "avx2", "avx512", "avx512_bf16"),
                         [](const auto& information) { return std::string(information.param); });

TEST(ImageEngineDropout, BelongsToTheRowOfTheGlobalBatch) {
  Images s(small_alexnet(0.5), 8, 8);
  const LossSums all = run_in_parts(s, *s.program());
  const std::vector<float> expected = copy(*s.gradients);
  auto half = s.program(Precision::fp32, PassMode::training, 4);
  EXPECT_NEAR(run_in_parts(s, *half).loss, all.loss, 1e-6 * all.loss);
  expect_same_tensors(s.table, s.gradients->data(), expected.data(), 1e-5);
  ++s.pass.step;
  EXPECT_GT(std::abs(run_in_parts(s, *half).loss - all.loss), 1e-3 * all.loss) << "another step draws another mask";
}

TEST(ImageEngineWatermarks, RiseToTheWholeVectorAndNameOnlyFinalGradients) {
  for (const auto& graph :
       {small_resnet(18, 16, "small", 16), small_resnet(50, 16, "imagenet", 64), small_alexnet(0.5)}) {
    Images s(graph, 8, 4);
    for (const bool accumulate : {false, true}) {
      auto program = s.program();
      run(*program, s.pass);
      std::vector<float> seen(static_cast<std::size_t>(s.table.size()));
      std::int64_t watermark = 0, calls = 0, polls = 0;
      program->backward(*s.gradients, accumulate,
                        {[&](std::int64_t next) {
                           EXPECT_GT(next, watermark);
                           std::copy(s.gradients->data() + watermark, s.gradients->data() + next,
                                     seen.begin() + watermark);
                           watermark = next;
                           ++calls;
                         },
                         [&] { ++polls; }});
      EXPECT_EQ(watermark, s.table.size());
      EXPECT_GE(calls, 5) << "a reducer that starts late hides nothing";
      EXPECT_GE(polls, 10);
      for (std::int64_t i = 0; i < s.table.size(); ++i)
        ASSERT_EQ(s.gradients->data()[i], seen[static_cast<std::size_t>(i)]) << i;
    }
  }
}

TEST(ImageEngineMemory, PredictedEqualsTaken) {
  for (const auto& graph : {small_resnet(50, 16, "imagenet", 64), small_alexnet(0.5), cnn({}, image_shape(32, 10), {})})
    for (const PassMode mode : {PassMode::training, PassMode::inference})
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        if (precision == Precision::bf16 && cpu::best_isa() != cpu::Isa::avx512_bf16) continue;
        Images s(graph, 8, 4);
        const std::int64_t before = s.backend->allocated_bytes();
        auto program = s.backend->compile(s.graph, 8, precision, mode, 4);
        EXPECT_EQ(s.backend->allocated_bytes(), before) << "compiling takes no memory";
        std::int64_t predicted = 0;
        for (const MemoryItem& item : program->memory()) predicted += item.bytes;
        program->allocate();
        EXPECT_EQ(s.backend->allocated_bytes() - before, predicted);
        program.reset();
        EXPECT_EQ(s.backend->allocated_bytes(), before);
      }
}

TEST(ImageEngineMemory, InferenceKeepsNoActivationsForABackwardPass) {
  Images s(small_resnet(50, 16, "imagenet", 64), 8);
  const auto bytes = [&](std::int64_t rows, PassMode mode) {
    std::int64_t sum = 0;
    for (const MemoryItem& item : s.backend->compile(s.graph, rows, Precision::fp32, mode)->memory()) sum += item.bytes;
    return sum;
  };
  const auto of_24_more = [&](PassMode mode) { return bytes(32, mode) - bytes(8, mode); };
  EXPECT_LT(3 * of_24_more(PassMode::inference), of_24_more(PassMode::training));
}

TEST(ImageEngineValues, NotFiniteWeightsShowInTheLoss) {
  for (const auto& [graph, name] : {std::pair(small_resnet(18, 16, "small", 16), "layer2.0.conv1.weight"),
                                    std::pair(small_resnet(18, 16, "small", 16), "layer1.0.bn2.weight"),
                                    std::pair(cnn({}, image_shape(16, 4), {}), "conv2.bias")}) {
    Images s(graph, 4);
    s.weights->data()[s.table.find(name).offset] = NAN;
    EXPECT_FALSE(std::isfinite(run(*s.program(), s.pass).loss)) << name;
  }
}

TEST(ImageEngineValues, NewWeightsAreSeenAfterSetWeights) {
  Images s(small_resnet(18, 16, "small", 16), 4);
  auto program = s.program();
  const double before = run(*program, s.pass).loss;
  for (const Parameter& p : s.table.all()) {
    const float kept = s.weights->data()[p.offset];
    s.weights->data()[p.offset] = kept + 0.5f;
    s.w[static_cast<std::size_t>(p.offset)] = static_cast<double>(kept + 0.5f);
  }
  program->set_weights(*s.weights);
  const double after = run(*program, s.pass).loss;
  EXPECT_NE(after, before);
  EXPECT_NEAR(after, s.expected().loss, 1e-5 * after);
}

class Bf16 : public testing::TestWithParam<NetworkCase> {};

// Rounding to bf16 changes a value by up to 2^-8 of it. Tens of layers add up these errors and switch ReLUs. PyTorch's
// autocast differs from fp64 by as much (image_golden_test.cpp).
TEST_P(Bf16, FollowsFp64Loops) {
  if (cpu::best_isa() != cpu::Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
  const NetworkCase& c = GetParam();
  Images s(c.graph, c.rows, c.group, c.threads, c.zero_gammas);
  const ImageResult expected = s.expected();
  auto program = s.program(Precision::bf16), exact = s.program();
  const LossSums sums = run(*program, s.pass);
  EXPECT_NEAR(sums.loss, expected.loss, 3e-2 * expected.loss);
  EXPECT_NE(sums.loss, run(*exact, s.pass).loss) << "bf16 was asked for and fp32 has run";
  program->backward(*s.gradients, false, {});
  EXPECT_LT(relative_difference(s.gradients->data(), expected.gradients.data(), s.table.trained()), 0.6);
  for (const Parameter& p : s.table.all()) {
    if (p.kind != ParameterKind::statistic) continue;
    const float* ours = s.gradients->data() + p.offset;
    EXPECT_LT(relative_difference(ours, expected.gradients.data() + p.offset, p.count), 0.05) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, Bf16, testing::ValuesIn(network_cases()),
                         [](const auto& information) { return information.param.name; });

TEST(ImageEngineBf16, PassesOfOneGroupAccumulateToOnePassOfFourGroups) {
  if (cpu::best_isa() != cpu::Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no AVX-512 BF16";
  Images s = four_groups();
  const LossSums all = run_in_parts(s, *s.program(Precision::bf16));
  const std::vector<float> expected = copy(*s.gradients);
  const LossSums sums = run_in_parts(s, *s.program(Precision::bf16, PassMode::training, 4));
  EXPECT_NEAR(sums.loss, all.loss, 1e-3 * all.loss);
  EXPECT_LT(relative_difference(s.gradients->data(), expected.data(), s.table.trained()), 0.02);
}

}  // namespace
}  // namespace ringtrain
