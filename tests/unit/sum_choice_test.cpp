#include <gtest/gtest.h>

#include <bit>
#include <map>

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

const SumLinks kLinks = {.node = {.alpha = 1e-6, .beta = 1 / 10e9, .gap = 0.5e-6},
                         .network = {.alpha = 2e-6, .beta = 1 / 20e9, .gap = 1e-6}};

TEST(SumChoices, CostsAreThoseOfTheFormulas) {
  const NodeShape one = filled_nodes(8, 8), many = filled_nodes(16, 1), both = filled_nodes(32, 8);
  const double n = 8e6;
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, one, kLinks, n).latency, 14e-6);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, one, kLinks, n).transfer, 14.0 / 8 * n / 10e9);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::halving, one, kLinks, n).latency, 6e-6);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::halving, one, kLinks, n).transfer, 14.0 / 8 * n / 10e9);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::halving, one, kLinks, 4096).alone(), 3 * (1e-6 + 4096 / 10e9));
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, many, kLinks, n).transfer, 30.0 / 16 * n / 10e9);
  // Inside a node, n / 2, n / 4 and n / 8 go there and back. Between nodes, n / 16 and n / 32 go there and back for
  // eight ranks at once.
  for (const SumAlgorithm algorithm : {SumAlgorithm::halving, SumAlgorithm::hierarchical}) {
    const SumCost cost = sum_cost(algorithm, both, kLinks, n);
    EXPECT_DOUBLE_EQ(cost.transfer, 2 * n * (7.0 / 8 / 10e9 + 3.0 / 32 * 8 / 20e9));
    EXPECT_DOUBLE_EQ(cost.in_ranks, 2 * n * 31.0 / 32 / 10e9);
    EXPECT_DOUBLE_EQ(cost.on_network, 2 * n * 3.0 / 32 * 8 / 20e9);
  }
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::hierarchical, both, kLinks, n).latency, 14e-6 + 4 * 2e-6);
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::hierarchical, both, kLinks, n).gap, 14 * 0.5e-6 + 4 * 1e-6);
  // A ring sends one message at a time from node to node, in 62 steps. A message is not faster than one in a node.
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::ring, both, kLinks, n).transfer, 62.0 / 32 * n / 10e9);
  // Three nodes: the sum of the pieces goes around a ring of all eight ranks of a node at once.
  EXPECT_DOUBLE_EQ(sum_cost(SumAlgorithm::hierarchical, filled_nodes(24, 8), kLinks, n).on_network, 4.0 / 3 * n / 20e9);
}

// Returns the most ranks of one node that send to other nodes in the step of the schedules that `in_step` accepts.
template <class InStep>
int flows_of(const std::vector<SumSchedule>& schedules, const RankLayout& layout, const InStep& in_step) {
  std::map<const void*, int> flows;
  int most = 0;
  for (int rank = 0; rank < static_cast<int>(schedules.size()); ++rank)
    for (const SumStep& step : schedules[static_cast<std::size_t>(rank)])
      if (step.to >= 0 && in_step(rank, step) && &layout.node_of(rank) != &layout.node_of(step.to))
        most = std::max(most, ++flows[&layout.node_of(rank)]);
  return most;
}

TEST(SumChoices, FlowsBetweenNodesAreThoseOfTheSchedules) {
  std::vector<std::vector<std::string>> layouts = {{"a", "b", "a", "b", "a", "b", "a"}, {"a", "a", "a", "a", "a", "b"}};
  for (const auto& [ranks, per_node] :
       {std::pair(32, 8), {9, 8}, {13, 12}, {36, 12}, {24, 12}, {21, 7}, {12, 3}, {5, 1}}) {
    std::vector<std::string>& all = layouts.emplace_back();
    for (int r = 0; r < ranks; ++r) all.push_back("node" + std::to_string(r / per_node));
  }
  for (const std::vector<std::string>& hosts_of_layout : layouts) {
    const RankLayout layout(hosts_of_layout);
    const int ranks = layout.shape().ranks, power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
    std::vector<SumSchedule> ring, halving;
    for (int r = 0; r < ranks; ++r) {
      ring.push_back(ring_sum(r, ranks, 1 << 20, 16));
      ring.back().resize(1);
      halving.push_back(halving_sum(r, ranks, 1 << 20, 16));
    }
    EXPECT_EQ(layout.shape().ring_flows, flows_of(ring, layout, [](int, const SumStep&) { return true; })) << ranks;
    for (int k = 0; 1 << k < power; ++k) {
      const auto there = [&](int rank, const SumStep& step) { return step.to == (rank ^ 1 << k) && step.adds; };
      EXPECT_EQ(layout.shape().halving_flows.at(static_cast<std::size_t>(k)), flows_of(halving, layout, there))
          << ranks << " ranks, distance " << (1 << k);
    }
    const auto to_power = [&](int rank, const SumStep&) { return rank >= power; };
    const auto back = [&](int, const SumStep& step) { return step.to >= power; };
    EXPECT_EQ(layout.shape().beyond_flows,
              std::max(flows_of(halving, layout, to_power), flows_of(halving, layout, back)))
        << ranks;
  }
  EXPECT_EQ(filled_nodes(13, 12).beyond_flows, 1);
  EXPECT_EQ(filled_nodes(36, 12).halving_flows, (std::vector<int>{0, 0, 4, 12, 12}));
  EXPECT_TRUE(filled_nodes(24, 12).even());
  EXPECT_FALSE(filled_nodes(13, 12).even());
}

TEST(SumChoices, PowersOfTwoHalveAndOddNumbersGoRoundForLargeSums) {
  for (const int ranks : {2, 4, 16})
    for (const double bytes : {1e3, 1e6, 1e8})
      EXPECT_EQ(fastest_sum(filled_nodes(ranks, ranks), kLinks, bytes), SumAlgorithm::halving) << ranks;
  EXPECT_EQ(fastest_sum(filled_nodes(3, 3), kLinks, 1e3), SumAlgorithm::halving);
  EXPECT_EQ(fastest_sum(filled_nodes(3, 3), kLinks, 1e8), SumAlgorithm::ring);
}

TEST(SumChoices, NodesOfOddSizesAreSummedFirst) {
  EXPECT_EQ(fastest_sum(filled_nodes(192, 12), kLinks, 1e6), SumAlgorithm::hierarchical);
  std::vector<std::string> round_robin;
  for (int r = 0; r < 64; ++r) round_robin.push_back("node" + std::to_string(r % 8));
  EXPECT_EQ(fastest_sum(RankLayout(round_robin).shape(), kLinks, 1e8), SumAlgorithm::hierarchical);
  EXPECT_EQ(fastest_sum(filled_nodes(192, 12), kLinks, 1e6, true), SumAlgorithm::ring);
  std::vector<std::string> uneven = hosts(4, 8);
  uneven.pop_back();
  EXPECT_NE(fastest_sum(RankLayout(uneven).shape(), kLinks, 1e8), SumAlgorithm::hierarchical);
}

TEST(SumChoices, AWrongWordAndUnevenNodesAreRefusedWithWhatToDo) {
  const NodeShape even = filled_nodes(4, 2);
  for (const char* word : {"auto", "ring", "halving", "hierarchical", "mpi"})
    EXPECT_NO_THROW(check_sum_choice({.algorithm = word}, even)) << word;
  EXPECT_THROW(check_sum_choice({.algorithm = "tree"}, even), Error);
  try {
    check_sum_choice({.algorithm = "hierarchical"}, filled_nodes(3, 2));
    ADD_FAILURE() << "uneven nodes were taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("one node has 1 ranks and another 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ringtrain
