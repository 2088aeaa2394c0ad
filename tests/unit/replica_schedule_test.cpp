// Tests when ranks compare their copies by default (communication.check_every_steps: -1), with a made-up clock.
#include <gtest/gtest.h>

#include "train/replica_check.h"

namespace ringtrain {
namespace {

// Returns the times at which comparisons end, in a run of about `end` seconds. A step takes `step` seconds, and a
// comparison takes `cost` seconds.
std::vector<double> comparisons(double step, double cost, double end) {
  std::vector<double> times;
  double now = 0, last = 0;
  while (now < end) {
    now += step;
    if (!is_time_to_compare(now - last, cost)) continue;
    now += cost;
    last = now;
    times.push_back(now);
  }
  return times;
}

TEST(ReplicaSchedule, ComparesOnceAMinute) {
  EXPECT_FALSE(is_time_to_compare(59.9, 0));
  EXPECT_TRUE(is_time_to_compare(60, 0));
  EXPECT_EQ(comparisons(0.5, 0.0, 3600).size(), 60u);
  EXPECT_EQ(comparisons(0.25, 0.01, 3600).size(), 59u);  // the comparisons themselves take time
}

TEST(ReplicaSchedule, TakesAtMostAThousandthOfTheTime) {
  for (const double cost : {0.01, 0.1, 1.0, 10.0}) {
    const double hours = 100 * 3600;
    const auto share = static_cast<double>(comparisons(1, cost, hours).size()) * cost / hours;
    EXPECT_LE(share, 0.001) << cost;
    EXPECT_GT(share, cost < 0.06 ? 0.0 : 0.00095) << cost;
  }
}

TEST(ReplicaSchedule, SlowStepsCompareAtTheFirstChance) {
  EXPECT_EQ(comparisons(90, 0, 900).size(), 10u);
}

}  // namespace
}  // namespace ringtrain
