// Tests the functions of successive halving: the rungs of a budget, and which points are promoted.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "study/search.h"

namespace ringtrain {
namespace {

using Rungs = std::vector<Rung>;

TEST(Halving, RungsEndWithOnePointAtTheWholeBudget) {
  EXPECT_EQ(halving_rungs(27, {.samples = 2700, .factor = 3}), (Rungs{{27, 100}, {9, 300}, {3, 900}, {1, 2700}}));
  EXPECT_EQ(halving_rungs(8, {.samples = 1000, .factor = 2}), (Rungs{{8, 125}, {4, 250}, {2, 500}, {1, 1000}}));
  EXPECT_EQ(halving_rungs(1, {.samples = 500, .factor = 3}), (Rungs{{1, 500}}));
  // If the factor does not divide evenly, points are rounded down and samples up.
  EXPECT_EQ(halving_rungs(17, {.samples = 1000, .factor = 4}), (Rungs{{17, 63}, {4, 250}, {1, 1000}}));
}

TEST(Halving, AFirstRungOfItsOwnLengthSetsTheOthers) {
  // Dask-ML uses n_i = floor(n / eta^i) and r_i = r eta^i.
  EXPECT_EQ(halving_rungs(27, {.samples = 2700, .factor = 3, .first = 300}), (Rungs{{27, 300}, {9, 900}, {3, 2700}}));
  EXPECT_EQ(halving_rungs(27, {.samples = 2000, .factor = 3, .first = 300}), (Rungs{{27, 300}, {9, 900}, {3, 2000}}));
  // A single point has no competitor, so it goes to the end.
  EXPECT_EQ(halving_rungs(4, {.samples = 10000, .factor = 2, .first = 10}), (Rungs{{4, 10}, {2, 20}, {1, 10000}}));
}

TEST(Halving, SamplesAreThoseThatEachRungAdds) {
  const Rungs rungs = {{27, 100}, {9, 300}, {3, 900}, {1, 2700}};
  EXPECT_EQ(samples_of(rungs, 1), 27 * 100 + 9 * 200 + 3 * 600 + 1 * 1800);
  EXPECT_EQ(samples_of(rungs, 64), 27 * 128 + 9 * 192 + 3 * 640 + 1 * 1792) << "whole batches";
  EXPECT_EQ(samples_of({{3, 1}}, 32), 96);
}

TEST(Halving, TheLowestLossesArePromotedAndTiesGoByName) {
  using Names = std::vector<std::string>;
  const double nan = std::nan(""), infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(promoted({{"a", 3}, {"b", 1}, {"c", 2}}, 2), (Names{"b", "c"}));
  EXPECT_EQ(promoted({{"z", 1}, {"b", 1}, {"c", 1}, {"a", 2}}, 2), (Names{"b", "c"}));
  EXPECT_EQ(promoted({{"a", nan}, {"b", infinite}, {"c", -infinite}, {"d", 5}}, 3), (Names{"d"}));
  EXPECT_EQ(promoted({{"a", nan}}, 1), Names{});
}

// f(x, samples) = (x - 0.3)^2 + 1 / samples has the same order at every rung, so halving finds the minimum of the whole
// grid.
TEST(Halving, FindsTheLowestPointOfAKnownFunction) {
  std::map<std::string, double> x;
  for (int i = 0; i < 40; ++i) x[std::to_string(i)] = i * 0.029;
  const Rungs rungs = halving_rungs(std::ssize(x), {.samples = 8100, .factor = 3});
  ASSERT_EQ(rungs.size(), 4u);
  std::vector<std::string> going;
  for (const auto& [name, at] : x) going.push_back(name);
  for (std::size_t r = 0; r < rungs.size(); ++r) {
    ASSERT_EQ(std::ssize(going), rungs[r].points);
    std::vector<RungLoss> losses;
    for (const std::string& name : going)
      losses.push_back({name, std::pow(x[name] - 0.3, 2) + 1.0 / static_cast<double>(rungs[r].samples)});
    going = promoted(losses, r + 1 < rungs.size() ? rungs[r + 1].points : 1);
  }
  EXPECT_EQ(going, (std::vector<std::string>{"10"}));  // x = 0.29
}

}  // namespace
}  // namespace ringtrain
