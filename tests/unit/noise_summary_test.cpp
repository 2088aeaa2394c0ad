// Tests the summary of the noise scale at the end of a run.
#include <gtest/gtest.h>

#include "optim/noise_scale.h"

namespace ringtrain {
namespace {

NoiseSummary summary() {
  return {.mean = {300, 2},
          .scale = {.value = 150, .low = 120, .high = std::nullopt},
          .batch = 64,
          .training_samples = 100,
          .characters_per_sample = 8};
}

bool has_part(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(NoiseSummary, PredictsTheGainOfOtherBatches) {
  const std::vector<PredictedBatch> batches = predicted_batches(summary());
  ASSERT_EQ(batches.size(), 9u);
  EXPECT_EQ(batches.front().batch, 16);
  EXPECT_EQ(batches[2].batch, 64);
  EXPECT_EQ(batches[2].gain, 1);
  EXPECT_EQ(batches[2].efficiency, 1);
  EXPECT_EQ(batches.back().batch, 4096);
  EXPECT_DOUBLE_EQ(batches[3].gain, 2 * (150.0 + 64) / (150 + 128));
  EXPECT_DOUBLE_EQ(batches[3].efficiency, (150.0 + 64) / (150 + 128));
  EXPECT_GT(batches.front().efficiency, 1) << "a smaller batch wastes less";
}

TEST(NoiseSummary, LeavesOutBatchesThatAreNoWholeNumber) {
  NoiseSummary s = summary();
  s.batch = 6;
  EXPECT_EQ(predicted_batches(s).front().batch, 3);
}

TEST(NoiseSummary, SaysBothUnitsTheIntervalAndTheTrainingSetsOwnValue) {
  const std::string text = describe(summary());
  EXPECT_TRUE(has_part(text, "150; 95 % from 120 to unbounded")) << text;
  EXPECT_TRUE(has_part(text, "1,200 (8 count in a sample)")) << text;
  EXPECT_DOUBLE_EQ(summary().scale_of_training_set(), 300.0 / (2 + 300.0 / 100));
  EXPECT_TRUE(has_part(text, "60 samples, |G|^2 5 (of the mean gradient of all 100)")) << text;
}

TEST(NoiseSummary, PredictsNothingWhereTheGradientIsLost) {
  NoiseSummary s = summary();
  s.mean.gradient = -1;
  s.scale = {.value = -300, .low = std::nullopt, .high = std::nullopt};
  EXPECT_TRUE(predicted_batches(s).empty());
  EXPECT_TRUE(has_part(describe(s), "no prediction")) << describe(s);
  EXPECT_TRUE(has_part(describe(s), "interval is unbounded")) << describe(s);
}

TEST(NoiseSummary, SaysTheScaleOfEachGroup) {
  EXPECT_FALSE(has_part(describe(summary()), "groups"));
  NoiseSummary s = summary();
  s.groups = {{"conv1.weight", {200, 1.5}, {.value = 133, .low = 100, .high = 170}},
              {"fc.bias", {100, 0.5}, {.value = 200, .low = std::nullopt, .high = std::nullopt}}};
  const std::string text = describe(s);
  EXPECT_TRUE(has_part(text, "noise scale of groups")) << text;
  EXPECT_TRUE(has_part(text, "conv1.weight")) << text;
  EXPECT_TRUE(has_part(text, "133; 95 % from 100 to 170; tr Sigma 200, |G|^2 1.5")) << text;
  EXPECT_TRUE(has_part(text, "200; its 95 % interval is unbounded; tr Sigma 100")) << text;
}

}  // namespace
}  // namespace ringtrain
