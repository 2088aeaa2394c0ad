#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "data/row_plan.h"

namespace ringtrain {
namespace {

std::vector<std::int64_t> order_of(std::uint64_t seed, std::int64_t epoch, std::int64_t count) {
  const EpochOrder order(seed, epoch, count);
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(order(i));
  return result;
}

TEST(EpochOrder, IsAPermutationForEveryCount) {
  for (const std::int64_t count :
       {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 97, 255, 256, 257, 1000, 4099, 65537, 100003}) {
    for (const std::int64_t epoch : {0, 1, 12}) {
      std::vector<bool> seen(static_cast<std::size_t>(count), false);
      for (const std::int64_t sample : order_of(3, epoch, count)) {
        ASSERT_GE(sample, 0);
        ASSERT_LT(sample, count);
        ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]) << sample << " twice, count " << count;
        seen[static_cast<std::size_t>(sample)] = true;
      }
    }
  }
}

TEST(EpochOrder, DiffersBetweenEpochsAndSeedsAndRepeats) {
  EXPECT_EQ(order_of(1, 0, 1000), order_of(1, 0, 1000));
  EXPECT_NE(order_of(1, 0, 1000), order_of(1, 1, 1000));
  EXPECT_NE(order_of(1, 0, 1000), order_of(2, 0, 1000));
}

TEST(EpochOrder, SendsEveryPositionEverywhereEquallyOften) {
  constexpr std::int64_t count = 5, epochs = 5000;
  std::vector<double> hits(count * count, 0);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    const std::vector<std::int64_t> order = order_of(7, epoch, count);
    for (std::int64_t i = 0; i < count; ++i)
      ++hits[static_cast<std::size_t>(i * count + order[static_cast<std::size_t>(i)])];
  }
  const double expected = epochs / count, deviation = std::sqrt(expected * (1 - 1.0 / count));
  for (const double hit : hits) EXPECT_NEAR(hit, expected, 5 * deviation);
}

TEST(EpochOrder, LeavesNoNeighboursTogether) {
  const std::vector<std::int64_t> order = order_of(1, 0, 100000);
  std::int64_t together = 0;
  for (std::size_t i = 1; i < order.size(); ++i) together += std::abs(order[i] - order[i - 1]) == 1;
  EXPECT_LT(together, 20);  // 2 are expected
}

TEST(EpochOrder, KeepsItsOrderAcrossVersions) {  // resumed runs need the same order
  EXPECT_EQ(order_of(1, 0, 8), (std::vector<std::int64_t>{3, 6, 2, 5, 4, 7, 0, 1}));
  const EpochOrder large(42, 3, std::int64_t{1} << 40);
  EXPECT_EQ(large(0), 748036637074);
  EXPECT_EQ(large((std::int64_t{1} << 40) - 1), 330889523069);
}

TEST(EpochOrder, OfNothingIsAnError) {
  EXPECT_THROW(EpochOrder(1, 0, 0), Error);
}

}  // namespace
}  // namespace ringtrain
