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

const SumLinks kLinks = {.node = {.alpha = 1e-6, .beta = 1 / 10e9},
                         .network = {.alpha = 2e-6, .beta = 1 / 20e9, .gap = 1e-6}};

TEST(SumChoices, CostsAreThoseOfTheFormulas) {
  const NodeShape one = filled_nodes(8, 8), many = filled_nodes(16, 1), both = filled_nodes(32, 8);
  const double n = 8e6;
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, one, kLinks, n).latency, 14e-6);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, one, kLinks, n).in_node, 14.0 / 8 * n / 10e9);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::halving, one, kLinks, n).latency, 6e-6);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::halving, one, kLinks, n).in_node, 14.0 / 8 * n / 10e9);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::halving, one, kLinks, 4096).alone(), 3 * (1e-6 + 4096 / 10e9));
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, many, kLinks, n).between_nodes, 30.0 / 16 * n / 10e9);
  // Inside a node, n / 2, n / 4 and n / 8 go there and back. Between nodes, n / 16 and n / 32 go there and back for
  // eight ranks at once.
  for (const SumAlgorithm algorithm : {SumAlgorithm::halving, SumAlgorithm::hierarchical}) {
    const SumCost cost = sum_cost(algorithm, both, kLinks, n);
    EXPECT_DOUBLE_EQ(cost.in_node, 2 * n * 7.0 / 8 / 10e9);
    EXPECT_DOUBLE_EQ(cost.between_nodes, 2 * n * 3.0 / 32 * 8 / 20e9);
    EXPECT_DOUBLE_EQ(cost.alone(), cost.latency + cost.in_node + cost.between_nodes);
    EXPECT_DOUBLE_EQ(cost.occupancy(), cost.gap + cost.in_node);  // the network has less to do
  }
  // The ring goes through the network with one message at a time, in 62 steps.
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, both, kLinks, n).between_nodes, 62.0 / 32 * n / 10e9);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::hierarchical, both, kLinks, n).latency, 14e-6 + 4 * 2e-6);
}

TEST(SumChoices, TheShapeOfFilledNodesIsThatOfTheirLayout) {
  for (const int per_node : {1, 2, 3, 4, 6, 8, 12, 16})
    for (const int nodes : {1, 2, 3, 4, 16}) {
      const NodeShape filled = filled_nodes(nodes * per_node, per_node);
      const NodeShape listed = RankLayout(hosts(nodes, per_node)).shape();
      EXPECT_EQ(filled.ranks, listed.ranks);
      EXPECT_EQ(filled.nodes, listed.nodes);
      EXPECT_EQ(filled.ranks_on_node, listed.ranks_on_node);
      EXPECT_EQ(filled.ring_flows, listed.ring_flows) << nodes << " x " << per_node;
      EXPECT_EQ(filled.near_distances, listed.near_distances) << nodes << " x " << per_node;
    }
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
