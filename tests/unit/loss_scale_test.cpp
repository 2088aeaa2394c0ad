#include "optim/loss_scale.h"

#include <gtest/gtest.h>

namespace ringtrain {
namespace {

TEST(LossScale, IsOneAndEveryOverflowIsFatalWithoutFp16) {
  LossScale scale;
  EXPECT_EQ(scale.value(), 1);
  EXPECT_TRUE(scale.advance(true));
  EXPECT_FALSE(scale.advance(false));
}

TEST(LossScale, HalvesAtAnOverflowAndDoublesAfterSoManyUpdatesInARow) {
  LossScale scale({.initial = 1024, .growth_steps = 3});
  EXPECT_TRUE(scale.advance(true));
  EXPECT_TRUE(scale.advance(true));
  EXPECT_TRUE(scale.advance(false));  // the row of good steps is broken
  EXPECT_EQ(scale.value(), 512);
  for (int i = 0; i < 2; ++i) scale.advance(true);
  EXPECT_EQ(scale.value(), 512);
  scale.advance(true);
  EXPECT_EQ(scale.value(), 1024);
}

TEST(LossScale, AStaticScaleStaysAndItsOverflowIsFatal) {
  LossScale scale({.initial = 128, .growth_steps = 0});
  for (int i = 0; i < 5000; ++i) EXPECT_TRUE(scale.advance(true));
  EXPECT_EQ(scale.value(), 128);
  EXPECT_FALSE(scale.advance(false));
}

TEST(LossScale, GivesUpWhenNoScaleMakesTheGradientFinite) {
  LossScale scale({.initial = 4, .growth_steps = 100});
  int overflows = 0;
  while (scale.advance(false)) ASSERT_LT(++overflows, 100);
  EXPECT_EQ(overflows, 16);  // the last scale was 4 x 2^-16 = 2^-14
}

TEST(LossScale, GoesOnAsIfItHadNeverStopped) {
  LossScale whole({.initial = 8, .growth_steps = 5}), first({.initial = 8, .growth_steps = 5});
  for (int i = 0; i < 7; ++i) whole.advance(i != 2), first.advance(i != 2);
  LossScale second({.initial = 8, .growth_steps = 5});
  second.resume(first.value(), first.steps_since_change());
  for (int i = 0; i < 20; ++i) {
    whole.advance(i != 9), second.advance(i != 9);
    EXPECT_EQ(second.value(), whole.value()) << i;
  }
}

}  // namespace
}  // namespace ringtrain
