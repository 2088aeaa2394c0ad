// Compares softmax, cross-entropy and its gradient in the GPU's kernel with double precision.
#include <algorithm>

#include "cuda_kernels.h"

namespace ringtrain::cuda {
namespace {

struct LossCase {
  TestMemory memory;
  std::int64_t samples, length, rows;
  int classes, stride;
  Array logits, gradient;
  std::int32_t* targets;
  PassSums* sums;
  unsigned* finished;
  StepState* state;
  CrossEntropyArguments a{};

  LossCase(Type type, std::int64_t the_samples, std::int64_t the_length, int the_classes, int the_stride)
      : samples(the_samples), length(the_length), rows(samples * length), classes(the_classes), stride(the_stride) {
    logits = memory.array(Type::fp32, rows * stride);  // the padding holds NaN
    for (std::int64_t i = 0; i < logits.count; ++i)
      if (i % stride < classes) logits.set(i, 3 * random_normal(1, static_cast<std::uint64_t>(i)));
    gradient = memory.array(type, rows * stride);
    targets = memory.make<std::int32_t>(rows);
    for (std::int64_t i = 0; i < rows; ++i) targets[i] = i % 5 == 3 ? -1 : static_cast<std::int32_t>(i * 7 % classes);
    const int blocks = loss_blocks({}, type, rows);
    sums = memory.make<PassSums>(1);
    *sums = {.loss = 100, .correct = 1000, .correct5 = 2000, .targets = 3000};
    finished = memory.make<unsigned>(1);
    *finished = 0;
    state = memory.make<StepState>(1);
    *state = {.gradient_scale = 0.125f};
    a = {.logits = logits.floats(),
         .targets = targets,
         .gradient = gradient.data,
         .partial = memory.make<PassSums>(blocks),
         .sums = sums,
         .finished = finished,
         .state = state,
         .samples = samples,
         .length = length,
         .classes = classes,
         .stride = stride,
         .blocks = blocks,
         .label_smoothing = 0,
         .top5 = true};
  }
  std::int32_t target(std::int64_t row) const { return targets[row % samples * length + row / samples]; }
  double logit(std::int64_t row, int j) const { return logits[row * stride + j]; }
};

void matches(Type type, LossCase& k, float smoothing) {
  k.a.label_smoothing = smoothing;
  ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(type, k.a)));
  PassSums expected{.loss = 100, .correct = 1000, .correct5 = 2000, .targets = 3000};
  const auto s = static_cast<double>(smoothing);
  for (std::int64_t row = 0; row < k.rows; ++row) {
    const std::int32_t target = k.target(row);
    double top = -INFINITY, sum = 0, loss = 0;
    int above = 0;
    for (int j = 0; j < k.classes; ++j) top = std::max(top, k.logit(row, j));
    for (int j = 0; j < k.classes; ++j) sum += std::exp(k.logit(row, j) - top);
    for (int j = 0; j < k.stride; ++j) {
      double e = 0;
      if (target >= 0 && j < k.classes) {
        const double share = s / k.classes + (j == target ? 1 - s : 0);
        loss -= share * (k.logit(row, j) - top - std::log(sum));
        above += j < target ? k.logit(row, j) >= k.logit(row, target) : k.logit(row, j) > k.logit(row, target);
        e = 0.125 * (std::exp(k.logit(row, j) - top) / sum - share);
      }
      ASSERT_NEAR(k.gradient[row * k.stride + j], e, tolerance(type, e, 0.1)) << row << " " << j;
    }
    if (target < 0) continue;
    expected.loss += loss;
    expected.correct += above == 0;
    expected.correct5 += above < 5;
    ++expected.targets;
  }
  EXPECT_NEAR(k.sums->loss, expected.loss, 1e-6 * expected.loss);
  EXPECT_EQ(k.sums->correct, expected.correct);
  EXPECT_EQ(k.sums->correct5, expected.correct5);
  EXPECT_EQ(k.sums->targets, expected.targets);
  EXPECT_EQ(*k.finished, 0u);
}

TEST(CudaKernelsLoss, LossCountsAndGradientMatchDoublePrecision) {
  for (const Type type : all_types)
    for (const auto& [classes, stride] : {std::pair{2, 2}, {10, 16}, {128, 128}, {1000, 1008}})
      for (const auto& [samples, length] : {std::pair{1, 1}, {37, 1}, {6, 9}})
        for (const float smoothing : {0.0f, 0.1f}) {
          SCOPED_TRACE(testing::Message() << type_name(type) << " " << samples << " x " << length << ", " << classes
                                          << " classes, smoothing " << smoothing);
          LossCase k(type, samples, length, classes, stride);
          ASSERT_NO_FATAL_FAILURE(matches(type, k, smoothing));
        }
}

TEST(CudaKernelsLoss, ManyBlocksAddUpTheSameWayEachTime) {
  LossCase k(Type::bf16, 3000, 1, 10, 16);
  ASSERT_GT(k.a.blocks, 256);  // more than one partial sum per thread of the last block
  ASSERT_NO_FATAL_FAILURE(matches(Type::bf16, k, 0));
}

TEST(CudaKernelsLoss, SumsGrowOverPasses) {
  LossCase k(Type::fp32, 20, 1, 10, 16);
  ASSERT_NO_FATAL_FAILURE(k.memory.run({launch_of(Type::fp32, k.a), launch_of(Type::fp32, k.a)}));
  EXPECT_EQ(k.sums->targets, 3000 + 2 * 16);
}

TEST(CudaKernelsLoss, OfEqualLogitsTheFirstIsTheAnswerAsOnTheCpu) {
  for (int target = 0; target < 7; ++target) {
    LossCase k(Type::fp32, 1, 1, 7, 7);
    k.targets[0] = target;
    for (int j = 0; j < 7; ++j) k.logits.set(j, 1);
    ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(Type::fp32, k.a)));
    EXPECT_EQ(k.sums->correct, target == 0 ? 1001 : 1000) << target;
    EXPECT_EQ(k.sums->correct5, target < 5 ? 2001 : 2000) << target;
  }
}

TEST(CudaKernelsLoss, ANaNIsNeverCorrectAndShowsInTheLoss) {
  LossCase k(Type::fp32, 1, 1, 7, 7);
  k.targets[0] = 2;
  k.logits.set(2, NAN);
  ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(Type::fp32, k.a)));
  EXPECT_EQ(k.sums->correct, 1000);
  EXPECT_EQ(k.sums->correct5, 2000);
  EXPECT_TRUE(std::isnan(k.sums->loss));
  EXPECT_TRUE(std::isnan(k.gradient[0]));
}

// The update is given to the device before the host knows the loss, so only the gradient can stop the update.
TEST(CudaKernelsLoss, ALossThatIsNotFiniteMakesTheGradientNaN) {
  for (const float smoothing : {0.0f, 0.1f}) {
    LossCase k(Type::bf16, 8, 1, 10, 16);
    k.a.label_smoothing = smoothing;
    k.logits.set(2 * 16 + k.target(2), -INFINITY);  // without this rule all shares and the gradient would be finite
    ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(Type::bf16, k.a)));
    EXPECT_FALSE(std::isfinite(k.sums->loss));
    for (int j = 0; j < 10; ++j) {
      EXPECT_TRUE(std::isnan(k.gradient[2 * 16 + j]));
      EXPECT_TRUE(std::isfinite(k.gradient[1 * 16 + j]));
    }
  }
}

TEST(CudaKernelsLoss, InferenceWritesNoGradientAndCountsTop5OnRequest) {
  LossCase k(Type::bf16, 20, 1, 10, 16);
  k.a.gradient = nullptr;
  k.a.top5 = false;
  ASSERT_NO_FATAL_FAILURE(k.memory.run(launch_of(Type::bf16, k.a)));
  EXPECT_TRUE(std::isnan(k.gradient[0]));
  EXPECT_EQ(k.sums->correct5, 2000);
  EXPECT_GT(k.sums->loss, 100);
}

}  // namespace
}  // namespace ringtrain::cuda
