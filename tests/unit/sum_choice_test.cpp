#include <gtest/gtest.h>

#include "base/error.h"
#include "cluster/sum_algorithms.h"

namespace ringtrain {
namespace {

std::vector<std::string> hosts(int nodes, int per_node) {
  std::vector<std::string> all;
  for (int n = 0; n < nodes; ++n)
    for (int i = 0; i < per_node; ++i) all.push_back("node" + std::to_string(n));
  return all;
}

const SumLinks kLinks = {
    .node_latency = 1e-6, .node_bandwidth = 10e9, .network_latency = 2e-6, .network_bandwidth = 20e9};

TEST(SumChoices, CostsAreThoseOfTheFormulas) {
  const RankLayout one(hosts(1, 8)), many(hosts(16, 1)), both(hosts(4, 8));
  const double n = 8e6;
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::ring, one, kLinks, n).latency, 14e-6);
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::ring, one, kLinks, n).transfer, 14.0 / 8 * n / 10e9);
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::halving, one, kLinks, n).latency, 6e-6);
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::halving, one, kLinks, n).transfer, 14.0 / 8 * n / 10e9);
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::halving, one, kLinks, 4096).total(), 3 * (1e-6 + 4096 / 10e9));
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::ring, many, kLinks, n).transfer, 30.0 / 16 * n / 10e9);
  // Inside a node, n / 2, n / 4 and n / 8 go there and back. Between nodes, n / 16 and n / 32 go there and back for
  // eight ranks at once.
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::halving, both, kLinks, n).transfer,
                   2 * n * (7.0 / 8 / 10e9 + 3.0 / 32 * 8 / 20e9));
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::hierarchical, both, kLinks, n).transfer,
                   2 * n * (7.0 / 8 / 10e9 + 3.0 / 32 * 8 / 20e9));
  EXPECT_DOUBLE_EQ(sum_seconds(SumAlgorithm::hierarchical, both, kLinks, n).latency, 14e-6 + 4 * 2e-6);
}

TEST(SumChoices, PowersOfTwoHalveAndOddNumbersGoRoundForLargeSums) {
  for (const int ranks : {2, 4, 16})
    for (const double bytes : {1e3, 1e6, 1e8})
      EXPECT_EQ(fastest_sum(RankLayout(hosts(1, ranks)), kLinks, bytes), SumAlgorithm::halving) << ranks;
  EXPECT_EQ(fastest_sum(RankLayout(hosts(1, 3)), kLinks, 1e3), SumAlgorithm::halving);
  EXPECT_EQ(fastest_sum(RankLayout(hosts(1, 3)), kLinks, 1e8), SumAlgorithm::ring);
}

TEST(SumChoices, NodesOfOddSizesAreSummedFirst) {
  EXPECT_EQ(fastest_sum(RankLayout(hosts(16, 12)), kLinks, 1e6), SumAlgorithm::hierarchical);
  std::vector<std::string> round_robin;
  for (int r = 0; r < 64; ++r) round_robin.push_back("node" + std::to_string(r % 8));
  EXPECT_EQ(fastest_sum(RankLayout(round_robin), kLinks, 1e8), SumAlgorithm::hierarchical);
  std::vector<std::string> uneven = hosts(4, 8);
  uneven.pop_back();
  EXPECT_NE(fastest_sum(RankLayout(uneven), kLinks, 1e8), SumAlgorithm::hierarchical);
}

TEST(SumChoices, AWrongWordAndUnevenNodesAreRefusedWithWhatToDo) {
  const RankLayout even(hosts(2, 2));
  for (const char* word : {"auto", "ring", "halving", "hierarchical", "mpi"})
    EXPECT_NO_THROW(check_sum_choice({.algorithm = word}, even)) << word;
  EXPECT_THROW(check_sum_choice({.algorithm = "tree"}, even), Error);
  std::vector<std::string> uneven = hosts(2, 2);
  uneven.pop_back();
  try {
    check_sum_choice({.algorithm = "hierarchical"}, RankLayout(uneven));
    ADD_FAILURE() << "uneven nodes were taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("one node has 1 ranks and another 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ringtrain
