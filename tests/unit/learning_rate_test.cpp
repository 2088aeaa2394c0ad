// Tests the learning rate at the corners of its schedules. The expected values follow from the papers' formulas,
// written out by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "config/batch_course.h"
#include "optim/schedule.h"

namespace ringtrain {
namespace {

// Goyal et al. 2017 use batch 8192, a reference of 0.1 at 256, and ImageNet's 1,281,167 images, which are 156 whole
// steps per epoch.
LearningRateConfig goyal() {
  LearningRateConfig config;
  config.base = 0.1;
  config.base_batch = 256;
  config.scaling = "linear";
  config.warmup_epochs = 5;
  config.schedule = "step";
  config.milestones = {30, 60, 80};
  config.factor = 0.1;
  return config;
}
const ScheduleContext goyal_run{8192, 156, 90 * 156};

LearningRateConfig simple(const std::string& schedule) {
  LearningRateConfig config;
  config.base = 0.5;
  config.warmup_steps = 10;
  config.warmup_from = "zero";
  config.schedule = schedule;
  config.end = 0.1;
  config.factor = 0.25;
  return config;
}
const ScheduleContext simple_run{64, 20, 110};

std::string refusal(const LearningRateConfig& config, const ScheduleContext& context, double step) {
  try {
    learning_rate(config, context, step);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(LearningRate, GoyalsWarmUpRunsFromTheBaseRateToThePeakInFiveEpochs) {
  EXPECT_EQ(warmup_steps(goyal(), goyal_run), 780);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 390), 1.65);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 1), 0.1 + 3.1 / 780);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 779), 3.2 - 3.1 / 780);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 780), 3.2);
}

TEST(LearningRate, GoyalsRateFallsByTenExactlyAtEpochs30And60And80) {
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 4679), 3.2);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 4680), 0.32);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 9359), 0.32);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 9360), 0.032);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 12479), 0.032);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 12480), 0.0032);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, 14039), 0.0032);
}

TEST(LearningRate, GoyalsBaselineBatchNeedsNoWarmUpSinceItStartsAtThePeak) {
  const ScheduleContext baseline{256, 5004, 90 * 5004};
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), baseline, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), baseline, 5004), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(goyal(), baseline, 30 * 5004), 0.01);
}

TEST(LearningRate, ScalingFollowsItsRule) {
  LearningRateConfig config;
  config.base = 0.002;
  config.base_batch = 256;
  const auto peak = [&config](const char* scaling) {
    config.scaling = scaling;
    return learning_rate(config, {4096, 10, 0}, 0);
  };
  EXPECT_DOUBLE_EQ(peak("none"), 0.002);
  EXPECT_DOUBLE_EQ(peak("linear"), 0.032);
  EXPECT_DOUBLE_EQ(peak("sqrt"), 0.008);
  EXPECT_DOUBLE_EQ(peak("legw"), 0.008);
  config.base_batch = 0;
  EXPECT_DOUBLE_EQ(peak("linear"), 0.002) << "no reference batch: no scaling";
}

TEST(LearningRate, LegwStretchesWarmUpEpochsByTheBatchAndSoKeepsItsSteps) {
  LearningRateConfig config;
  config.base = 0.002;
  config.base_batch = 256;
  config.scaling = "legw";
  config.warmup_epochs = 0.5;
  config.warmup_from = "zero";
  // With 16 times the batch, an epoch has 1600 / 16 steps, and the warm-up takes 8 epochs, not 0.5.
  EXPECT_EQ(warmup_steps(config, {256, 1600, 0}), 800);
  EXPECT_EQ(warmup_steps(config, {4096, 100, 0}), 800);
  EXPECT_DOUBLE_EQ(learning_rate(config, {4096, 100, 0}, 400), 0.004);
  EXPECT_DOUBLE_EQ(learning_rate(config, {4096, 100, 0}, 800), 0.008);
  config.scaling = "sqrt";
  EXPECT_EQ(warmup_steps(config, {4096, 100, 0}), 50) << "sqrt does not stretch";
  config.scaling = "legw";
  config.warmup_epochs = 0;
  config.warmup_steps = 30;
  EXPECT_EQ(warmup_steps(config, {4096, 100, 0}), 30) << "steps are taken as they are";
}

TEST(LearningRate, WarmUpFromZeroStartsAtZeroAndReachesThePeak) {
  for (const char* schedule : {"constant", "polynomial", "cosine", "exponential"}) {
    const LearningRateConfig config = simple(schedule);
    EXPECT_EQ(learning_rate(config, simple_run, 0), 0) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 3), 0.15) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 10), 0.5) << schedule;
  }
}

TEST(LearningRate, PolynomialRunsFromTheEndOfWarmUpToExactlyEnd) {
  LearningRateConfig config = simple("polynomial");  // 100 steps of decay, power 2
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 35), 0.1 + 0.4 * 0.5625);
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 60), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 109), 0.1 + 0.4 * 0.0001);
  EXPECT_EQ(learning_rate(config, simple_run, 110), 0.1);
  EXPECT_EQ(learning_rate(config, simple_run, 100000), 0.1) << "beyond the end it stays";
  config.power = 1;
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 85), 0.2);
}

TEST(LearningRate, CosineRunsFromTheEndOfWarmUpToExactlyEnd) {
  const LearningRateConfig config = simple("cosine");
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 35), 0.3 + 0.2 * std::sqrt(0.5));  // cos(45 degrees)
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 60), 0.3);
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 85), 0.3 - 0.2 * std::sqrt(0.5));
  EXPECT_EQ(learning_rate(config, simple_run, 110), 0.1);
  EXPECT_EQ(learning_rate(config, simple_run, 111), 0.1);
}

TEST(LearningRate, ExponentialFallsByTheFactorPerEpochAndALittleAtEveryStep) {
  const LearningRateConfig config = simple("exponential");  // 20 steps per epoch, factor 1/4
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 20), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 30), 0.125);
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 50), 0.03125);
  EXPECT_LT(learning_rate(config, simple_run, 11), 0.5);
}

TEST(LearningRate, ConstantStays) {
  LearningRateConfig config;
  config.base = 0.001;
  for (const double step : {0, 1, 1000, 1000000000}) EXPECT_EQ(learning_rate(config, {4096, 88, 0}, step), 0.001);
}

LearningRateConfig with_points(const std::vector<EpochFactor>& points) {
  LearningRateConfig config;
  config.base = 2;
  config.schedule = "points";
  config.points = points;
  return config;
}

// FFCV's rn50 configurations go up to the peak in two epochs, then down to zero.
TEST(LearningRate, PointsAreJoinedByStraightLines) {
  const LearningRateConfig config = with_points({{0, 0}, {2, 1}, {16, 0}});
  const ScheduleContext context{4096, 10, 160};
  EXPECT_EQ(learning_rate(config, context, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 5), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 19), 1.9);
  EXPECT_EQ(learning_rate(config, context, 20), 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 55), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 125), 0.5);
  EXPECT_EQ(learning_rate(config, context, 160), 0);
  EXPECT_EQ(learning_rate(config, context, 1000), 0);
}

// Akiba et al. 2017 use 0.5, 0.075, 0.01 and 0.001 of the scaled rate for 40, 30, 15 and 5 epochs.
TEST(LearningRate, TwoPointsAtAnEpochAreAJump) {
  LearningRateConfig config =
      with_points({{0, 0.5}, {40, 0.5}, {40, 0.075}, {70, 0.075}, {70, 0.01}, {85, 0.01}, {85, 0.001}});
  config.base = 0.1;
  config.base_batch = 256;
  config.scaling = "linear";
  const ScheduleContext context{32768, 39, 90 * 39};
  const double peak = 12.8;
  for (const auto& [epoch, factor] : {std::pair{0, 0.5}, {39, 0.5}, {40, 0.075}, {69, 0.075}, {70, 0.01}, {84, 0.01}}) {
    EXPECT_DOUBLE_EQ(learning_rate(config, context, epoch * 39), peak * factor) << epoch;
    EXPECT_DOUBLE_EQ(learning_rate(config, context, epoch * 39 + 38), peak * factor) << epoch;
  }
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 85 * 39 - 1), peak * 0.01);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 85 * 39), peak * 0.001);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 90 * 39), peak * 0.001);
}

TEST(LearningRate, BeforeTheFirstPointTheRateIsConstantAndWarmUpComesFirst) {
  LearningRateConfig config = with_points({{2, 0.5}, {4, 0.25}});
  const ScheduleContext context{64, 10, 0};
  EXPECT_EQ(learning_rate(config, context, 0), 1);
  EXPECT_EQ(learning_rate(config, context, 20), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 30), 0.75);
  config.warmup_epochs = 3;
  config.warmup_from = "zero";
  EXPECT_EQ(learning_rate(config, context, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 15), 1) << "half of the peak";
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 30), 0.75);
}

TEST(LearningRate, PointsRoundToTheNearestStep) {
  const LearningRateConfig config = with_points({{0.7, 1}, {0.7, 0.5}, {1.06, 0}});
  const ScheduleContext context{1, 10, 0};  // 0.7 x 10 = 7, and 1.06 x 10 = 10.6
  EXPECT_EQ(learning_rate(config, context, 6), 2);
  EXPECT_EQ(learning_rate(config, context, 7), 1);
  EXPECT_EQ(learning_rate(config, context, 9), 0.5);
  EXPECT_EQ(learning_rate(config, context, 11), 0);
}

// The batch doubles in the middle of epoch 1. The rate depends on the number of samples, not on the number of updates.
TEST(LearningRate, PointsFollowThePositionWhereTheBatchChanges) {
  const LearningRateConfig config = with_points({{0, 1}, {2, 0}});
  const ScheduleContext context{64, 10, 0};
  Position position = position_at(15, 64, 640);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, context.steps(position)), 0.5);
  const BatchCourse course{640, false, {{.batch = 64}, {.epoch = 1, .offset = 384, .batch = 128}}};
  position = course.after(course.after(position));
  EXPECT_DOUBLE_EQ(learning_rate(config, context, context.steps(position)), 0.2);
}

TEST(LearningRate, AnEpochOfOneRateHasThatOfItsFirstStep) {
  for (const char* schedule : {"step", "polynomial", "cosine", "exponential", "points"}) {
    LearningRateConfig config = simple(schedule);
    config.warmup_steps = 0;
    config.milestones = {1.5};
    config.points = {{0, 1}, {5, 0.5}};
    LearningRateConfig stepped = config;
    stepped.every = "epoch";
    for (int step = 0; step < 110; ++step)
      EXPECT_EQ(learning_rate(stepped, simple_run, step), learning_rate(config, simple_run, step / 20 * 20))
          << schedule << " " << step;
    EXPECT_EQ(learning_rate(stepped, simple_run, 39.5), learning_rate(config, simple_run, 20));
  }
}

// This is lr_cosine_policy of NVIDIA's DeepLearningExamples: base (e + 1) / W in epoch e of the warm-up, then the
// cosine of (e - W) / (epochs - W).
TEST(LearningRate, AnEpochOfOneRateIsNvidias) {
  LearningRateConfig config;
  config.base = 0.256;
  config.base_batch = 256;
  config.scaling = "linear";
  config.warmup_epochs = 8;
  config.warmup_from = "zero";
  config.schedule = "cosine";
  config.every = "epoch";
  const ScheduleContext context{2048, 625, 90 * 625};
  for (int epoch = 0; epoch < 90; ++epoch) {
    const double expected =
        epoch < 8 ? 2.048 * (epoch + 1) / 8 : 1.024 * (1 + std::cos(std::acos(-1.0) * (epoch - 8) / 82));
    for (const int within : {0, 1, 624})
      EXPECT_NEAR(learning_rate(config, context, epoch * 625 + within), expected, 1e-14) << epoch;
  }
}

// The epoch in which the warm-up ends has the peak rate, not more.
TEST(LearningRate, AWarmUpOfAFractionOfAnEpochEndsAtThePeak) {
  LearningRateConfig config = simple("constant");
  config.warmup_steps = 50;  // an epoch has 20 steps
  config.every = "epoch";
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 19), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(config, simple_run, 20), 0.4);
  EXPECT_EQ(learning_rate(config, simple_run, 41), 0.5);
  EXPECT_EQ(learning_rate(config, simple_run, 60), 0.5);
}

TEST(LearningRate, SchedulesWithoutMilestonesHaveNoJump) {
  for (const char* schedule : {"constant", "polynomial", "cosine", "exponential"})
    for (const char* from : {"zero", "base"}) {
      LearningRateConfig config = simple(schedule);
      config.scaling = "linear";
      config.base_batch = 32;
      config.warmup_from = from;
      for (int step = 0; step < 120; ++step)
        EXPECT_LE(std::abs(learning_rate(config, simple_run, step + 1) - learning_rate(config, simple_run, step)),
                  1.0 / 10 + 1e-12)  // the warm-up is the steepest part
            << schedule << " from " << from << " at step " << step;
    }
}

TEST(LearningRate, FractionalEpochsRoundToTheNearestStep) {
  LearningRateConfig config;
  config.base = 1;
  config.schedule = "step";
  config.milestones = {0.26};
  const ScheduleContext context{1, 10, 0};
  EXPECT_EQ(learning_rate(config, context, 2), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 3), 0.1);
  config.warmup_epochs = 0.24;
  EXPECT_EQ(warmup_steps(config, context), 2);
}

TEST(LearningRate, ARunThatEndsInsideItsWarmUpStaysOnTheRampAndThenAtEnd) {
  const LearningRateConfig config = simple("cosine");
  const ScheduleContext context{64, 20, 5};
  EXPECT_DOUBLE_EQ(learning_rate(config, context, 4), 0.2);
  EXPECT_EQ(learning_rate(config, context, 10), 0.1);
}

TEST(LearningRate, WhatIsMissingIsSaid) {
  EXPECT_EQ(refusal(simple("cosine"), {64, 20, 0}, 10),
            "learning_rate.schedule cosine needs the number of steps of the run");
  EXPECT_EQ(refusal(simple("exponential"), {64, 0, 0}, 10),
            "the exponential schedule needs the number of steps per epoch");
  EXPECT_EQ(refusal(goyal(), {8192, 0, 0}, 10), "the learning rate needs at least 1 step per epoch, got 0");
  EXPECT_EQ(refusal(goyal(), goyal_run, -1), "the learning rate of step -1 was asked for; steps count from 0");
  EXPECT_EQ(refusal(with_points({}), simple_run, 0), "learning_rate.schedule points needs learning_rate.points");
  LearningRateConfig by_epoch = simple("constant");
  by_epoch.every = "epoch";
  EXPECT_EQ(refusal(by_epoch, {64, 0, 0}, 0), "learning_rate.every: epoch needs the number of steps per epoch");
  EXPECT_EQ(refusal(simple("stairs"), simple_run, 10), "learning_rate.schedule 'stairs' is not known");
}

TEST(LearningRateCorners, GoyalsAreTheOnesOfThePaper) {
  const auto corners = learning_rate_corners(goyal(), goyal_run);
  const std::vector<std::pair<std::int64_t, double>> expected = {
      {0, 0.1}, {780, 3.2}, {4680, 0.32}, {9360, 0.032}, {12480, 0.0032}};
  ASSERT_EQ(corners.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(corners[i].step, expected[i].first) << corners[i].what;
    EXPECT_DOUBLE_EQ(learning_rate(goyal(), goyal_run, static_cast<double>(corners[i].step)), expected[i].second);
  }
  EXPECT_EQ(corners[0].what, "start of warm-up");
  EXPECT_EQ(corners[1].what, "peak");
  EXPECT_EQ(corners[2].what, "milestone, epoch 30");
}

TEST(LearningRateCorners, ADecayHasItsHalf) {
  const auto corners = learning_rate_corners(simple("cosine"), simple_run);
  ASSERT_EQ(corners.size(), 3u);
  EXPECT_EQ(corners[2].step, 60);
  EXPECT_EQ(corners[2].what, "half of the decay");
}

TEST(LearningRateCorners, PointsAreCornersAndAJumpIsOne) {
  LearningRateConfig config = with_points({{0, 1}, {1, 0.5}, {1, 0.25}, {3, 0}});
  const ScheduleContext context{64, 10, 50};
  const auto corners = learning_rate_corners(config, context);
  ASSERT_EQ(corners.size(), 3u);
  EXPECT_EQ(corners[0].what, "start");
  EXPECT_EQ(corners[1].step, 10);
  EXPECT_EQ(corners[1].what, "point, epoch 1");
  EXPECT_EQ(corners[2].what, "point, epoch 3");
  config.warmup_steps = 10;
  EXPECT_EQ(learning_rate_corners(config, context)[1].what, "end of warm-up");
  config.points = {{0, 0.5}, {3, 1}};
  EXPECT_EQ(learning_rate_corners(config, context)[2].step, 30);
}

TEST(LearningRateCorners, ARateOfWholeEpochsChangesWhereEpochsBegin) {
  LearningRateConfig config = simple("step");  // 20 steps an epoch, 10 steps of warm-up
  config.every = "epoch";
  config.milestones = {2, 2.5};
  const auto corners = learning_rate_corners(config, simple_run);
  ASSERT_EQ(corners.size(), 4u);
  EXPECT_EQ(corners[1].step, 0) << "the warm-up's only epoch has the peak";
  EXPECT_EQ(corners[2].step, 40);
  EXPECT_EQ(corners[3].step, 60);
  config.warmup_steps = 41;
  EXPECT_EQ(learning_rate_corners(config, simple_run)[1].step, 40) << "the third epoch ends after 60 steps";
}

TEST(LearningRateCorners, AMilestoneAtTheEndOfTheWarmUpLeavesNoPeak) {
  LearningRateConfig config = simple("step");
  config.warmup_steps = 40;
  config.milestones = {2};
  const auto corners = learning_rate_corners(config, simple_run);
  ASSERT_EQ(corners.size(), 3u);
  EXPECT_EQ(corners[1].what, "end of warm-up");
  EXPECT_EQ(corners[2].step, 40);
}

TEST(LearningRateCorners, AConstantRateHasOne) {
  LearningRateConfig config;
  config.base = 0.001;
  const auto corners = learning_rate_corners(config, {4096, 88, 0});
  ASSERT_EQ(corners.size(), 1u);
  EXPECT_EQ(corners[0].what, "constant");
}

}  // namespace
}  // namespace ringtrain
