// Tests the position of a run, which counts samples.
#include <gtest/gtest.h>

#include "config/batch_course.h"
#include "optim/schedule.h"

namespace ringtrain {
namespace {

TEST(Position, StepByStepIsTheSameAsAtOnce) {
  for (const std::int64_t samples : {24, 25, 47, 48, 1000}) {
    const BatchCourse course = constant_course(24, samples);
    Position p;
    for (std::int64_t step = 0; step < 200; ++step) {
      EXPECT_EQ(p, position_at(step, 24, samples)) << samples;
      p = course.after(p);
    }
  }
}

TEST(Position, WhatFillsNoBatchAtTheEndOfAnEpochIsDropped) {
  const Position p = position_at(7, 10, 35);
  EXPECT_EQ(p, (Position{7, 70, 2, 10})) << "three batches of each epoch, the last 5 samples dropped";
}

TEST(Position, SchedulesMeasureItInStepsOfTheFirstBatch) {
  const ScheduleContext context{20, 5, 50};  // 100 samples an epoch
  for (std::int64_t step = 0; step < 60; ++step) {
    const Position p = position_at(step, 20, 109);
    EXPECT_EQ(context.steps(p), static_cast<double>(step)) << "to the bit";
    EXPECT_EQ(context.epochs(p), static_cast<double>(step) / 5) << "to the bit";
  }
  EXPECT_EQ(context.steps({3, 80, 0, 80}), 4) << "as far as four batches of 20";
  EXPECT_DOUBLE_EQ(context.epochs({3, 90, 1, 50}), 1.5);
}

// The rate depends on the samples seen, not on the number of updates.
TEST(Position, ARateIsThatOfTheSamplesSeen) {
  LearningRateConfig config;
  config.schedule = "cosine";
  config.base = 1;
  const ScheduleContext context{20, 5, 50};
  const Position small = position_at(24, 20, 100), large{14, 480, 4, 80};  // in a run that also had batches of 40
  EXPECT_EQ(learning_rate(config, context, context.steps(small)), learning_rate(config, context, context.steps(large)));
}

}  // namespace
}  // namespace ringtrain
