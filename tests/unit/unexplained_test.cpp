// Tests what is added to predicted steps because measured ones took longer.
#include "bench/forecast.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ringtrain {
namespace {

TEST(Unexplained, NothingWithoutMeasurements) {
  EXPECT_EQ(Unexplained().at(1, 1), 0);
  EXPECT_EQ(Unexplained().at(64, 8), 0);
}

TEST(Unexplained, MeasuredCountsGetWhatWasMeasuredAndOthersLieBetween) {
  Unexplained u;
  u.add(16, 8, 5);
  u.add(2, 2, 1);
  EXPECT_EQ(u.at(2, 2), 1);
  EXPECT_EQ(u.at(16, 8), 5);
  EXPECT_EQ(u.at(1, 1), 0);
  const double x = (std::sqrt(std::log(4.0)) - std::sqrt(std::log(2.0))) / std::sqrt(std::log(2.0));
  EXPECT_NEAR(u.at(4, 4), 1 + 4 * x, 1e-12) << "sqrt(ln 16) is twice sqrt(ln 2)";
  EXPECT_NEAR(u.at(256, 8), 5 * std::sqrt(2), 1e-12);
}

TEST(Unexplained, SoManyRanksOnOtherNodesAreApart) {
  Unexplained u;
  u.add(4, 4, 1);
  u.add(4, 2, 3);
  EXPECT_EQ(u.at(4, 4), 1);
  EXPECT_EQ(u.at(4, 2), 3);
  EXPECT_TRUE(u.at(4, 1) == 1 || u.at(4, 1) == 3);
  EXPECT_TRUE(std::isfinite(u.at(8, 8)) && std::isfinite(u.at(3, 3)));
}

TEST(Unexplained, AModelThatWasTooSlowIsNotMoreSoOnMoreRanks) {
  Unexplained u;
  u.add(2, 2, -1);
  EXPECT_EQ(u.at(1024, 2), -1);
}

}  // namespace
}  // namespace ringtrain
