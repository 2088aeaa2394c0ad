// Tests the least time of a step: the products that are counted, the rates of GPUs, and the measured rate of cores.
#include "run/step_bound.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cuda/backend.h"
#include "backend/cuda/program/base.h"
#include "backend/cuda/program/schedule.h"
#include "tests/emulation/host_device.h"
#include "tests/unit/images.h"

namespace ringtrain {
namespace {

constexpr std::int64_t kPositions = 3, kSymbols = 7, kHidden = 5;

Graph text_model() {
  Graph g;
  const int x = g.lstm(g.lstm(g.tokens(kPositions, kSymbols), kHidden, "lstm", 0), kHidden, "lstm", 1);
  g.cross_entropy(g.dense(x, kSymbols, "decoder"));
  return g;
}

TEST(TrainingFlops, OfPicturesCountEachProductAndNoGradientOfThePictures) {
  Graph g;
  int x = g.image(8, 8, {0, 0, 0}, {1, 1, 1});
  x = g.relu(g.convolution(x, 4, 3, 1, 1, "first"));   // [4, 8, 8]
  x = g.relu(g.convolution(x, 6, 3, 2, 1, "second"));  // [6, 4, 4]
  g.cross_entropy(g.dense(g.flatten(x), 10, "fc"));
  const std::int64_t first = 2 * (4 * 8 * 8) * (3 * 3 * 3), second = 2 * (6 * 4 * 4) * (4 * 3 * 3), fc = 2 * 96 * 10;
  const std::int64_t forward = first + second + fc, data_gradient = second + fc, weight_gradient = first + second + fc;
  EXPECT_EQ(g.training_flops_per_sample(), forward + data_gradient + weight_gradient);
}

TEST(TrainingFlops, OfTextCountTheProductsOfEveryPosition) {
  // The input of the first layer is a gather. Its hidden state needs a gradient, too.
  const std::int64_t first = 2 * (4 * kHidden) * kHidden, second = 2 * (4 * kHidden) * (2 * kHidden),
                     decoder = 2 * kHidden * kSymbols;
  EXPECT_EQ(text_model().training_flops_per_sample(), 3 * kPositions * (first + second + decoder));
}

TEST(TrainingFlops, OfTheStagesAddUpToThoseOfTheModel) {
  for (const Graph& graph : {text_model(), small_resnet(18, 8, "small", 8)}) {
    const int size = static_cast<int>(graph.nodes().size());
    int cuts = 0;
    for (int cut = 1; cut < size; ++cut) {
      if (!graph.can_be_cut(cut)) continue;
      ++cuts;
      EXPECT_EQ(graph.part(0, cut).training_flops_per_sample() + graph.part(cut, size).training_flops_per_sample(),
                graph.training_flops_per_sample())
          << cut;
    }
    EXPECT_GT(cuts, 0);
  }
}

cuda::Rates rates(const char* name, int capability, cuda::Math math = cuda::Math::half) {
  cuda::DeviceFacts facts;
  facts.name = name;
  facts.compute_capability = capability;
  return cuda::rates_of(facts, math);
}

TEST(Rates, OfKnownNamesAreThoseOfTheTable) {
  const cuda::Rates h100 = rates("NVIDIA H100 80GB HBM3", 90), h200 = rates("NVIDIA H200", 90);
  EXPECT_EQ(h100.bytes, 3.0e12);
  EXPECT_EQ(h100.flops, 7.98e14);
  EXPECT_EQ(h200.bytes, 4.3e12);
  EXPECT_EQ(h200.flops, 7.9e14);
  EXPECT_FALSE(h100.is_estimate || h200.is_estimate);
  EXPECT_EQ(rates("NVIDIA H200", 90, cuda::Math::tf32).flops, 7.9e14 / 2);
  EXPECT_EQ(rates("NVIDIA H200", 90, cuda::Math::fp32).flops, 7.9e14 / 14);
}

TEST(Rates, OfOtherNamesAreEstimates) {
  for (const char* name : {"NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 480GB", "host"}) {
    const cuda::Rates other = rates(name, 90), estimate = cuda::rates_of(90, cuda::Math::half);
    EXPECT_TRUE(other.is_estimate) << name;
    EXPECT_EQ(other.bytes, estimate.bytes) << name;
    EXPECT_EQ(other.flops, estimate.flops) << name;
  }
}

TEST(Rates, TheLongerOfProductsAndTrafficIsTheBound) {
  const cuda::Rates rates{.bytes = 10, .flops = 1000};
  EXPECT_EQ(cuda::bound_seconds(2000, 10, rates), 2);
  EXPECT_EQ(cuda::bound_seconds(2000, 50, rates), 5);
}

TEST(StepBound, OfAGpuIsTheSumOverTheCommandsOfAProgram) {
  cuda::HostDevice device;
  const auto program = cuda::make_backend(device, {})
                           ->compile(small_resnet(18, 8, "small", 8), 4, Precision::bf16, PassMode::training, 4);
  const cuda::Schedule& schedule = dynamic_cast<const cuda::ProgramBase&>(*program).schedule();
  const cuda::Rates given{.bytes = 1e9, .flops = 1e12};
  double sum = 0;
  for (const cuda::Command& command : schedule.commands()) sum += std::max(command.bytes / 1e9, command.flops / 1e12);
  const cuda::LeastSeconds least = cuda::least_seconds_of(schedule, given);
  EXPECT_GT(least.weights, 0);
  EXPECT_GT(least.pass, 0);
  EXPECT_NEAR(least.pass + least.weights, sum, 1e-9 * sum);
}

TEST(StepBound, GrowsWithTheSamplesOfAReplica) {
  StepBound bound;
  bound.replicas = 4;
  bound.seconds_per_sample = 0.5;
  bound.seconds_per_update = 0.25;
  EXPECT_EQ(bound.step_seconds(32), 32 / 4 * 0.5 + 0.25);
}

// Two replicas of a pipeline of two stages: the ranks' work for a sample is 1, 3, 1 and 3 operations.
TEST(StepBound, OfRanksAddsTheirWorkAndTakesTheMeanOfTheirTimes) {
  const RankBound sum{.ranks = 4,
                      .flops_per_sample = 1 + 3 + 1 + 3,
                      .bytes_per_sample = 2 * (1 + 3 + 1 + 3),
                      .flops_per_second = 4 * 8,
                      .bytes_per_second = 4 * 16,
                      .seconds_per_sample = (1 + 3 + 1 + 3) / 8.0,
                      .seconds_per_update = 4 * 0.25};
  const StepBound bound = bound_of_sum(sum, 2);
  EXPECT_EQ(bound.ranks, 4);
  EXPECT_EQ(bound.flops_per_sample, 4);
  EXPECT_EQ(bound.bytes_per_sample, 8);
  EXPECT_EQ(bound.flops_per_second, 8);
  EXPECT_EQ(bound.bytes_per_second, 16);
  // 16 samples are 64 operations. Four ranks with 8 operations a second take 2 s.
  EXPECT_EQ(bound.step_seconds(16), 2 + 0.25);
}

TEST(MatrixRate, IsMeasuredOnEveryThread) {
  for (const int threads : {1, 2}) {
    const double rate = make_cpu_backend(threads)->measure_matrix_rate(Precision::fp32);
    EXPECT_TRUE(std::isfinite(rate) && rate > 1e6) << rate;
  }
}

TEST(MatrixRate, LeavesNoMemoryBehind) {
  const auto backend = make_cpu_backend(2);
  backend->measure_matrix_rate(Precision::fp32);
  EXPECT_EQ(backend->allocated_bytes(), 0);
}

}  // namespace
}  // namespace ringtrain
