// Tests the parameter table, initial values and the arena.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "models/models.h"
#include "nn/arena.h"

namespace ringtrain {
namespace {

TEST(ParameterTable, TensorsLieInTheOrderInWhichBackwardFinishesThem) {
  const ParameterTable table = char_lstm({"char_lstm", 10, 3, 0.1}, {8, 31}).parameters();
  std::vector<std::string> names;
  std::int64_t end = 0;
  for (const Parameter& p : table.all()) {
    names.push_back(p.name);
    EXPECT_EQ(p.offset % 64, 0);
    EXPECT_GE(p.offset, end);
    EXPECT_LT(p.offset - end, 64);
    end = p.offset + p.count;
  }
  EXPECT_EQ(names.front(), "linear.weight");
  EXPECT_EQ(names[2], "lstm.weight_ih_l2");
  EXPECT_EQ(names.back(), "lstm.bias_hh_l0");
  EXPECT_EQ(table.size() % 64, 0);
  EXPECT_THROW(table.find("nothing"), Error);
}

TEST(InitialWeights, AreAFunctionOfSeedAndNameAlone) {
  const ParameterTable small = char_lstm({"char_lstm", 16, 1, 0.1}, {8, 31}).parameters();
  const ParameterTable large = char_lstm({"char_lstm", 16, 4, 0.1}, {8, 31}).parameters();
  std::vector<float> a(static_cast<std::size_t>(small.size())), b(static_cast<std::size_t>(large.size()));
  initialize(small, 5, a);
  initialize(large, 5, b);
  const Parameter &p = small.find("lstm.weight_hh_l0"), &q = large.find("lstm.weight_hh_l0");
  EXPECT_NE(p.offset, q.offset);
  for (std::int64_t i = 0; i < p.count; ++i)
    ASSERT_EQ(a[static_cast<std::size_t>(p.offset + i)], b[static_cast<std::size_t>(q.offset + i)]);
  initialize(small, 6, b);
  EXPECT_NE(a[static_cast<std::size_t>(p.offset)], b[static_cast<std::size_t>(p.offset)]);
  double mean = 0, most = 0;
  for (std::int64_t i = 0; i < p.count; ++i) {
    mean += static_cast<double>(a[static_cast<std::size_t>(p.offset + i)]) / static_cast<double>(p.count);
    most = std::max(most, std::abs(static_cast<double>(a[static_cast<std::size_t>(p.offset + i)])));
  }
  EXPECT_NEAR(mean, 0, 0.02);
  EXPECT_LE(most, 0.25);  // 1 / sqrt(16)
  EXPECT_GT(most, 0.24);
}

TEST(Arena, BuffersAliveTogetherNeverOverlapAndTheSizeIsTheLargestSum) {
  for (std::uint64_t trial = 0; trial < 50; ++trial) {
    ArenaPlan arena;
    for (std::uint64_t i = 0; i < 30; ++i) {
      const auto draw = [&](std::uint64_t k, double n) {
        return static_cast<int>(random_uniform(trial, 3 * i + k) * n);
      };
      const int first = draw(0, 20);
      if (i % 10 == 9)
        arena.add("lasting", draw(1, 5000) + 1);
      else
        arena.add("b", draw(1, 5000) + 1, first, first + draw(2, 6));
    }
    arena.place();
    std::int64_t largest_sum = 0;
    for (int moment = 0; moment < 26; ++moment) {
      std::int64_t sum = 0;
      for (const auto& item : arena.items())
        if (item.first <= moment && moment <= item.last) sum += item.bytes;
      largest_sum = std::max(largest_sum, sum);
    }
    EXPECT_GE(arena.bytes(), largest_sum);
    EXPECT_LE(arena.bytes(), largest_sum + largest_sum / 2);
    for (const auto& a : arena.items())
      for (const auto& b : arena.items()) {
        if (&a == &b || a.last < b.first || b.last < a.first) continue;
        EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset);
        EXPECT_EQ(a.offset % ArenaPlan::alignment, 0);
      }
  }
}

}  // namespace
}  // namespace ringtrain
