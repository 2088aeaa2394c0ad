// Tests sums in a binary tree. The bits must not depend on how many values each rank has.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "run/fixed_order.h"

namespace ringtrain {
namespace {

// Records the order of the additions as text.
struct Formula {
  std::string text = "";
  Formula& operator+=(const Formula& other) {
    text = "(" + other.text + "+" + text + ")";
    return *this;
  }
};

TEST(TreeSums, AddNeighboursFirst) {
  TreeSum<Formula> sum;
  EXPECT_EQ(sum.total().text, "");
  const char* const expected[] = {"0",
                                  "(0+1)",
                                  "((0+1)+2)",
                                  "((0+1)+(2+3))",
                                  "(((0+1)+(2+3))+4)",
                                  "(((0+1)+(2+3))+(4+5))",
                                  "(((0+1)+(2+3))+((4+5)+6))"};
  for (int i = 0; i < 7; ++i) {
    sum.add({std::to_string(i)});
    EXPECT_EQ(sum.total().text, expected[i]);
  }
}

TEST(TreeSums, OfPartsAreThatOfTheWhole) {
  std::mt19937 random(1);
  std::vector<double> values(64);
  for (double& value : values) value = static_cast<double>(random()) / 3;
  const auto sum_of = [&](std::size_t begin, std::size_t end) {
    TreeSum<double> sum;
    for (std::size_t i = begin; i < std::min(end, values.size()); ++i) sum.add(values[i]);
    return sum.total();
  };
  double in_order = 0;
  for (const double value : values) in_order += value;
  EXPECT_NE(sum_of(0, 64), in_order) << "the values show no order";
  // 64 values, and counts that are no power of two.
  for (const std::size_t count : {64u, 41u, 33u, 5u}) {
    values.resize(count);
    const double whole = sum_of(0, count);
    for (std::size_t part = 1; part <= 64; part *= 2) {
      TreeSum<double> of_parts;
      for (std::size_t begin = 0; begin < 64; begin += part) of_parts.add(sum_of(begin, begin + part));
      EXPECT_EQ(of_parts.total(), whole) << count << " values in parts of " << part;
    }
  }
}

}  // namespace
}  // namespace ringtrain
