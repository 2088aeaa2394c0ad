// Tests the decision that a run has diverged although its loss is a number.
#include <gtest/gtest.h>

#include "run/run_end.h"

namespace ringtrain {
namespace {

// Returns the step after which the run counts as diverged; 0: never.
std::int64_t ends_at(LossWatch watch, std::int64_t first_step, const std::vector<double>& losses) {
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::int64_t step = first_step + static_cast<std::int64_t>(i);
    watch.add({.step = step, .samples = 8 * step, .elapsed_seconds = 0.5 * static_cast<double>(step)}, losses[i]);
    if (watch.has_diverged()) return step;
  }
  return 0;
}

std::vector<double> first_then(double first, double then, std::size_t steps) {
  std::vector<double> losses(steps, then);
  losses.front() = first;
  return losses;
}

constexpr RunLength hundred{RunLength::Unit::steps, 100};

TEST(LossWatchTest, EndsAfterTheShareAboveTheFirstLoss) {
  EXPECT_EQ(ends_at({0.25, hundred, 2}, 1, first_then(2.3, 2.4, 100)), 26);
  EXPECT_EQ(ends_at({0.25, hundred, 2}, 1, first_then(2.3, 2.3, 100)), 0);
  EXPECT_EQ(ends_at({0, hundred, 2}, 1, first_then(2.3, 1e9, 100)), 0);
}

TEST(LossWatchTest, OneLowLossBeginsTheStretchAgain) {
  std::vector<double> losses = first_then(2.3, 2.4, 100);
  losses[20] = 2.2;
  EXPECT_EQ(ends_at({0.25, hundred, 2}, 1, losses), 46);
}

TEST(LossWatchTest, ShortStretchesAndBranchesMustBeTwiceAsHigh) {
  EXPECT_EQ(ends_at({0.1, hundred, 2}, 1, first_then(2.3, 2.4, 15)), 0);
  EXPECT_EQ(ends_at({0.1, hundred, 2}, 1, first_then(2.3, 5, 100)), 11);
  EXPECT_EQ(ends_at({0.25, hundred, 2}, 501, first_then(1.6, 2.4, 100)), 0);
  EXPECT_EQ(ends_at({0.25, hundred, 2}, 501, first_then(1.6, 3.4, 100)), 526);
}

TEST(LossWatchTest, ALossBelowThatOfGuessingIsNeverDiverged) {
  EXPECT_EQ(ends_at({0.25, hundred, 2.3}, 501, first_then(0.001, 0.1, 100)), 0);
  EXPECT_EQ(ends_at({0.25, hundred, 2.3}, 1, first_then(0.5, 2.2, 100)), 0);
}

TEST(LossWatchTest, OtherLengthsAndNone) {
  EXPECT_EQ(ends_at({0.25, {RunLength::Unit::samples, 800}, 2}, 1, first_then(2.3, 2.4, 100)), 26);
  EXPECT_EQ(ends_at({0.25, {RunLength::Unit::seconds, 50}, 2}, 1, first_then(2.3, 2.4, 100)), 26);
  EXPECT_EQ(ends_at({0.25, {RunLength::Unit::seconds, 0}, 2}, 1, first_then(2.3, 1e9, 100)), 0);
}

}  // namespace
}  // namespace ringtrain
