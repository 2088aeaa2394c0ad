// Compares quasi-random points with published values, and tests the numbers that a study draws from them.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "study/vary.h"

namespace ringtrain {
namespace {

// The values are torch.quasirandom.SobolEngine(10).draw(1025) x 2^32 (torch 2.15, Joe and Kuo's direction numbers).
TEST(StudyDraws, SobolPointsAreThoseOfJoeAndKuo) {
  const std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> points = {
      {0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {1, std::vector<std::uint32_t>(10, 0x80000000u)},
      {5,
       {3758096384, 3758096384, 536870912, 1610612736, 3758096384, 2684354560, 3758096384, 1610612736, 1610612736,
        536870912}},
      {31,
       {134217728, 2281701376, 3892314112, 4160749568, 4160749568, 3355443200, 1476395008, 2281701376, 671088640,
        2550136832}},
      {1000,
       {943718400, 415236096, 2227175424, 2906652672, 1203765248, 3896508416, 197132288, 3862953984, 2151677952,
        297795584}}};
  for (const auto& [index, expected] : points)
    for (std::size_t d = 0; d < most_drawn_keys; ++d) EXPECT_EQ(sobol(index, d), expected[d]) << index << " " << d;
}

// Halton 1960: the digits of the index in base 2, 3 or 5, in reverse order after the point.
TEST(StudyDraws, HaltonPointsAreRadicalInverses) {
  const std::vector<std::vector<double>> expected = {{0, 0, 0},
                                                     {1.0 / 2, 1.0 / 3, 1.0 / 5},
                                                     {1.0 / 4, 2.0 / 3, 2.0 / 5},
                                                     {3.0 / 4, 1.0 / 9, 3.0 / 5},
                                                     {1.0 / 8, 4.0 / 9, 4.0 / 5},
                                                     {5.0 / 8, 7.0 / 9, 1.0 / 25},
                                                     {3.0 / 8, 2.0 / 9, 6.0 / 25}};
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (std::size_t d = 0; d < 3; ++d) EXPECT_NEAR(halton(i, d), expected[i][d], 1e-15) << i << " " << d;
  EXPECT_NEAR(halton(30, 9), 1.0 / 29 + 1.0 / 841, 1e-15);  // 30 = 1 x 29 + 1
}

TEST(StudyDraws, AreDeterministicDifferBySeedAndLieInTheUnitInterval) {
  for (const Sequence sequence : {Sequence::sobol, Sequence::halton, Sequence::random})
    for (std::size_t d = 0; d < most_drawn_keys; ++d)
      for (std::uint32_t i = 0; i < 200; ++i) {
        const double value = drawn(sequence, 7, i, d);
        ASSERT_GT(value, 0);
        ASSERT_LT(value, 1);
        ASSERT_EQ(value, drawn(sequence, 7, i, d));
        ASSERT_NE(value, drawn(sequence, 8, i, d));
      }
}

// A shifted net is still a net, so each of 16 equal cells of the square holds one of the first 16 points.
TEST(StudyDraws, SixteenSobolPointsFillSixteenCells) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    std::set<std::pair<int, int>> squares, columns;
    for (std::uint32_t i = 0; i < 16; ++i) {
      const double x = drawn(Sequence::sobol, seed, i, 0), y = drawn(Sequence::sobol, seed, i, 1);
      squares.insert({static_cast<int>(4 * x), static_cast<int>(4 * y)});
      columns.insert({static_cast<int>(16 * x), 0});
    }
    EXPECT_EQ(squares.size(), 16u);
    EXPECT_EQ(columns.size(), 16u);
  }
}

TEST(StudyDraws, NumbersLieInTheirRangeWithFourDigits) {
  NumberRange range{0.0001, 0.1, true, false, 1};
  EXPECT_EQ(value_at(range, 1e-12), "0.0001");
  EXPECT_EQ(value_at(range, 0.5), "0.003162");
  EXPECT_EQ(value_at(range, 1 - 1e-12), "0.1");
  EXPECT_EQ(value_at({0.9, 0.99996, false, false, 1}, 1 - 1e-12), "0.99996");  // rounding must not leave the range
  EXPECT_EQ(value_at({-1, 1, false, false, 1}, 0.5), "0");
}

TEST(StudyDraws, IntegersHaveEqualSharesAndAreMultiples) {
  const NumberRange dice{1, 6, false, true, 1};
  std::map<std::string, int> counts;
  for (int i = 0; i < 6000; ++i) ++counts[value_at(dice, (i + 0.5) / 6000)];
  ASSERT_EQ(counts.size(), 6u);
  for (const auto& [value, count] : counts) EXPECT_EQ(count, 1000) << value;

  const NumberRange batch{300, 8192, true, true, 256};
  EXPECT_EQ(value_at(batch, 1e-9), "512");
  EXPECT_EQ(value_at(batch, 1 - 1e-9), "8192");
  for (int i = 0; i < 100; ++i) EXPECT_EQ(std::stoi(value_at(batch, (i + 0.5) / 100)) % 256, 0);
}

TEST(StudyDraws, GridsHaveBothEnds) {
  EXPECT_EQ(grid_values({0.001, 0.1, true, false, 1}, 3), (std::vector<std::string>{"0.001", "0.01", "0.1"}));
  EXPECT_EQ(grid_values({0, 1, false, false, 1}, 5), (std::vector<std::string>{"0", "0.25", "0.5", "0.75", "1"}));
  EXPECT_EQ(grid_values({256, 4096, true, true, 256}, 5),
            (std::vector<std::string>{"256", "512", "1024", "2048", "4096"}));
  EXPECT_EQ(grid_values({1, 3, false, true, 1}, 9), (std::vector<std::string>{"1", "2", "3"}));  // no repeats
  EXPECT_EQ(grid_values({5, 7, false, true, 1}, 1), (std::vector<std::string>{"5"}));
}

TEST(StudyDraws, MorePointsKeepTheFirst) {
  Draws few{{{"learning_rate.base", "", {0.001, 0.1, true, false, 1}}, {"optimizer.beta2", "", {0.9, 0.999}}},
            Sequence::sobol,
            4};
  Draws many = few;
  many.count = 64;
  for (std::uint32_t i = 0; i < few.count; ++i) {
    const auto a = drawn_settings(few, 1, i), b = drawn_settings(many, 1, i);
    ASSERT_EQ(a.size(), 2u);
    EXPECT_EQ(a[0].value, b[0].value);
    EXPECT_EQ(a[1].value, b[1].value);
    EXPECT_EQ(a[1].key, "optimizer.beta2");
  }
}

}  // namespace
}  // namespace ringtrain
