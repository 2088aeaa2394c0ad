// Tests when a batch that follows the noise scale doubles.
#include <gtest/gtest.h>

#include "optim/noise_scale.h"

namespace ringtrain {
namespace {

NoiseRatio at_least(double low) {
  return {.value = 2 * low, .low = low, .high = std::nullopt};
}

// The follower aims at half of the noise scale.
TEST(NoiseFollower, ABatchDoublesThatHasBeenSmallForLongEnough) {
  NoiseFollower follower(0.5, 100, 128);
  EXPECT_EQ(follower.next(32, at_least(65), 32), 32) << "it has been small from here on";
  EXPECT_EQ(follower.next(32, at_least(65), 96), 32);
  EXPECT_FALSE(follower.may_double(32, 131));
  EXPECT_TRUE(follower.may_double(32, 132));
  EXPECT_EQ(follower.next(32, at_least(65), 160), 64);
  EXPECT_EQ(follower.next(64, at_least(1e9), 224), 64) << "a new wait begins";
  EXPECT_EQ(follower.next(64, at_least(1e9), 324), 128);
  EXPECT_EQ(follower.next(128, at_least(1e9), 400), 128);
  EXPECT_FALSE(follower.may_double(128, 1000));
  EXPECT_EQ(follower.next(128, at_least(1e9), 1000), 128) << "the largest";
}

TEST(NoiseFollower, OneStepThatFindsTheBatchLargeEnoughEndsTheWait) {
  for (const NoiseRatio& enough : {at_least(64), at_least(-1), NoiseRatio{.value = 1e9, .low = {}, .high = {}}}) {
    NoiseFollower follower(0.5, 100, 128);
    follower.next(32, at_least(65), 32);
    EXPECT_EQ(follower.next(32, enough, 64), 32);
    EXPECT_EQ(follower.small_since(), NoiseFollower::not_small);
    EXPECT_EQ(follower.next(32, at_least(65), 150), 32);
    EXPECT_EQ(follower.next(32, at_least(65), 249), 32);
    EXPECT_EQ(follower.next(32, at_least(65), 250), 64);
  }
}

TEST(NoiseFollower, GoesOnFromACheckpoint) {
  NoiseFollower first(1, 100, 128), second(1, 100, 128);
  first.next(32, at_least(65), 32);
  second.resume(first.small_since());
  EXPECT_EQ(second.next(32, at_least(65), 132), 64);
}

TEST(NoiseFollower, OffMeansOff) {
  NoiseFollower off(0, 0, 0);
  EXPECT_EQ(off.next(32, at_least(1e9), 32), 32);
  EXPECT_FALSE(off.may_double(32, 1000));
}

}  // namespace
}  // namespace ringtrain
