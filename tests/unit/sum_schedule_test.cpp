#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "cluster/sum_algorithms.h"

namespace ringtrain {
namespace {

using MakeSchedule = std::function<SumSchedule(int rank, std::size_t length)>;

struct SumOutcome {
  std::vector<std::vector<float>> values;              // per rank
  std::vector<std::size_t> sent;                       // elements that each rank sends
  std::map<std::pair<int, int>, std::size_t> between;  // elements sent from one rank to another
};

// Carries out the schedules of all ranks at once. A rank goes to its next step when the message that it waits for has
// been sent.
SumOutcome carry_out(int ranks, std::vector<std::vector<float>> values, const MakeSchedule& make) {
  struct Message {
    std::vector<float> values;
  };
  std::map<std::pair<int, int>, std::deque<Message>> wires;
  std::vector<SumSchedule> schedules;
  std::vector<std::size_t> step(static_cast<std::size_t>(ranks), 0);
  std::vector<bool> has_sent(static_cast<std::size_t>(ranks), false);
  SumOutcome outcome{
      .values = std::move(values), .sent = std::vector<std::size_t>(static_cast<std::size_t>(ranks), 0), .between = {}};
  for (int r = 0; r < ranks; ++r) schedules.push_back(make(r, outcome.values[0].size()));
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < ranks; ++r) {
      const auto rank = static_cast<std::size_t>(r);
      if (step[rank] == schedules[rank].size()) continue;
      const SumStep& s = schedules[rank][step[rank]];
      std::vector<float>& own = outcome.values[rank];
      if (!has_sent[rank] && s.sent.size() > 0) {
        wires[{r, s.to}].push_back({{own.begin() + static_cast<std::ptrdiff_t>(s.sent.begin),
                                     own.begin() + static_cast<std::ptrdiff_t>(s.sent.end)}});
        outcome.sent[rank] += s.sent.size();
        outcome.between[{r, s.to}] += s.sent.size();
      }
      has_sent[rank] = true;
      if (s.received.size() > 0) {
        std::deque<Message>& wire = wires[{s.from, r}];
        if (wire.empty()) continue;
        EXPECT_EQ(wire.front().values.size(), s.received.size()) << "rank " << r << " from " << s.from;
        if (wire.front().values.size() != s.received.size()) return outcome;
        for (std::size_t i = 0; i < s.received.size(); ++i) {
          float& into = own[s.received.begin + i];
          into = s.adds ? into + wire.front().values[i] : wire.front().values[i];
        }
        wire.pop_front();
      }
      ++step[rank], has_sent[rank] = false, moved = true;
    }
  }
  for (int r = 0; r < ranks; ++r)
    EXPECT_EQ(step[static_cast<std::size_t>(r)], schedules[static_cast<std::size_t>(r)].size())
        << "rank " << r << " waits for ever";
  for (const auto& [ends, wire] : wires)
    EXPECT_TRUE(wire.empty()) << "nobody takes what " << ends.first << " sent to " << ends.second;
  return outcome;
}

std::vector<std::vector<float>> rough_values(int ranks, std::size_t length) {
  std::vector<std::vector<float>> values(static_cast<std::size_t>(ranks), std::vector<float>(length));
  for (std::size_t r = 0; r < values.size(); ++r)
    for (std::size_t i = 0; i < length; ++i)
      values[r][i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i) + 2.3 * static_cast<double>(r)) *
                                        std::pow(10.0, static_cast<double>((i + r) % 5)));
  return values;
}

void expect_sums(int ranks, std::size_t length, const MakeSchedule& make, const std::string& what) {
  std::vector<std::vector<float>> whole(static_cast<std::size_t>(ranks), std::vector<float>(length));
  for (std::size_t r = 0; r < whole.size(); ++r)
    for (std::size_t i = 0; i < length; ++i) whole[r][i] = static_cast<float>((r + 1) * 8 + i % 7);
  std::vector<float> expected(length, 0.0f);
  for (const auto& of_rank : whole)
    for (std::size_t i = 0; i < length; ++i) expected[i] += of_rank[i];
  for (const auto& of_rank : carry_out(ranks, whole, make).values)
    EXPECT_EQ(of_rank, expected) << what << ", " << ranks << " ranks, " << length << " elements";
  const SumOutcome rough = carry_out(ranks, rough_values(ranks, length), make);
  for (const auto& of_rank : rough.values)
    EXPECT_EQ(std::memcmp(of_rank.data(), rough.values[0].data(), length * sizeof(float)), 0)
        << what << ": other bits on another rank, " << ranks << " ranks, " << length << " elements";
}

const std::vector<std::size_t> kLengths = {1, 2, 3, 15, 16, 17, 100, 4095, 4096, 4097, 10007};

TEST(SumSchedules, RingAndHalvingSumEveryElementOnAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (const std::size_t length : kLengths)
      for (const std::size_t align : {1u, 16u}) {
        expect_sums(
            ranks, length, [&](int r, std::size_t n) { return ring_sum(r, ranks, n, align); }, "ring");
        expect_sums(
            ranks, length, [&](int r, std::size_t n) { return halving_sum(r, ranks, n, align); }, "halving");
      }
}

std::vector<std::vector<int>> blocks(int nodes, int ranks_per_node, bool round_robin) {
  std::vector<std::vector<int>> all(static_cast<std::size_t>(nodes));
  for (int r = 0; r < nodes * ranks_per_node; ++r)
    all[static_cast<std::size_t>(round_robin ? r % nodes : r / ranks_per_node)].push_back(r);
  return all;
}

TEST(SumSchedules, HierarchicalSumsEveryElementOnAnyNodes) {
  for (int nodes = 1; nodes <= 6; ++nodes)
    for (int per_node = 1; per_node <= 5; ++per_node)
      for (const bool round_robin : {false, true})
        for (const std::size_t length : {1u, 17u, 4097u, 30011u}) {
          const auto layout = blocks(nodes, per_node, round_robin);
          expect_sums(
              nodes * per_node, length, [&](int r, std::size_t n) { return hierarchical_sum(r, layout, n, 16); },
              "hierarchical");
        }
}

// Every rank sends 2 (p - 1) / p of the vector, which is the least that is possible (Patarasuk and Yuan 2009).
TEST(SumSchedules, RingAndHalvingSendNoMoreThanTheBoundAndHalvingInFewSteps) {
  const std::size_t length = 1 << 16;
  for (const int ranks : {2, 4, 8, 64}) {
    const auto bound = static_cast<std::size_t>(2 * (ranks - 1)) * length / static_cast<std::size_t>(ranks);
    for (const auto& make : {MakeSchedule([&](int r, std::size_t n) { return ring_sum(r, ranks, n, 16); }),
                             MakeSchedule([&](int r, std::size_t n) { return halving_sum(r, ranks, n, 16); })})
      for (const std::size_t sent : carry_out(ranks, rough_values(ranks, length), make).sent) EXPECT_EQ(sent, bound);
    EXPECT_EQ(ring_sum(0, ranks, length, 16).size(), static_cast<std::size_t>(2 * (ranks - 1)));
    EXPECT_EQ(halving_sum(0, ranks, length, 16).size(), static_cast<std::size_t>(2 * std::lround(std::log2(ranks))));
    EXPECT_EQ(halving_sum(0, ranks, small_sum, 16).size(), static_cast<std::size_t>(std::lround(std::log2(ranks))));
  }
}

TEST(SumSchedules, HierarchicalSendsEachElementOverTheNetworkOnce) {
  const int nodes = 4, per_node = 8;
  const std::size_t length = 1 << 17;
  for (const bool round_robin : {false, true}) {
    const auto layout = blocks(nodes, per_node, round_robin);
    std::vector<int> node_of(nodes * per_node);
    for (std::size_t n = 0; n < layout.size(); ++n)
      for (const int r : layout[n]) node_of[static_cast<std::size_t>(r)] = static_cast<int>(n);
    const SumOutcome outcome = carry_out(nodes * per_node, rough_values(nodes * per_node, length),
                                         [&](int r, std::size_t n) { return hierarchical_sum(r, layout, n, 16); });
    std::vector<std::size_t> leaving(nodes, 0);
    for (const auto& [ends, count] : outcome.between) {
      const int from = node_of[static_cast<std::size_t>(ends.first)];
      if (from != node_of[static_cast<std::size_t>(ends.second)]) leaving[static_cast<std::size_t>(from)] += count;
    }
    for (const std::size_t count : leaving) EXPECT_EQ(count, 2 * (nodes - 1) * length / nodes);
  }
}

TEST(SumSchedules, StepsInANodeAreThoseWhosePartnersAreThere) {
  const int nodes = 4, per_node = 4, ranks = nodes * per_node;
  const auto steps_in_node = [&](SumSchedule schedule, const std::vector<int>& node) {
    mark_steps_in_node(schedule, node);
    std::size_t marked = 0;
    for (const SumStep& step : schedule) {
      EXPECT_EQ(step.in_node, std::ranges::count(node, step.to) + std::ranges::count(node, step.from) == 2);
      marked += step.in_node ? 1 : 0;
    }
    return marked;
  };
  for (const bool round_robin : {false, true}) {
    const auto layout = blocks(nodes, per_node, round_robin);
    for (const std::vector<int>& node : layout)
      for (const int rank : node) {
        // Both sums go there and back. The hierarchical sum has three steps within the node in each direction. Halving
        // has two: of the four bits of a rank's number, two choose the rank within its node.
        EXPECT_EQ(steps_in_node(hierarchical_sum(rank, layout, 1 << 16, 16), node), 2u * (per_node - 1));
        EXPECT_EQ(steps_in_node(halving_sum(rank, ranks, 1 << 16, 16), node), 4u);
      }
  }
  for (const int rank : {0, 1}) {  // each has a neighbour on the other node
    SumSchedule ring = ring_sum(rank, 4, 100, 1);
    mark_steps_in_node(ring, {0, 1});
    for (const SumStep& step : ring) EXPECT_FALSE(step.in_node);
  }
  SumSchedule beyond = halving_sum(4, 5, 100, 1);  // it only sends, then only receives
  mark_steps_in_node(beyond, {0, 4});
  for (const SumStep& step : beyond) EXPECT_TRUE(step.in_node);
}

// The tree over the ranks does not depend on how a vector is cut, nor on whether it is halved.
TEST(SumSchedules, HalvingAddsInOneTreeForAllLengths) {
  for (const int ranks : {2, 3, 4, 6, 8}) {
    const auto make = [&](int r, std::size_t n) { return halving_sum(r, ranks, n, 16); };
    const auto values = rough_values(ranks, 10007);
    const SumOutcome long_sum = carry_out(ranks, values, make);
    for (const std::size_t begin : {0u, 100u, 5000u}) {
      std::vector<std::vector<float>> part;
      for (const auto& v : values)
        part.emplace_back(v.begin() + static_cast<std::ptrdiff_t>(begin),
                          v.begin() + static_cast<std::ptrdiff_t>(begin) + 100);
      EXPECT_EQ(std::memcmp(carry_out(ranks, part, make).values[0].data(), long_sum.values[0].data() + begin,
                            100 * sizeof(float)),
                0);
    }
  }
}

TEST(SumSchedules, HalvesOfTheRingLeaveEachRankItsPiece) {
  for (const int ranks : {2, 3, 5})
    for (const std::size_t length : {7u, 100u, 1003u}) {
      const std::size_t piece = (length + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
      const auto values = rough_values(ranks, length);
      const SumOutcome scattered = carry_out(
          ranks, values, [&](int r, std::size_t n) { return ring_reduce_scatter(r, ranks, n, piece, piece); });
      const SumOutcome gathered = carry_out(
          ranks, scattered.values, [&](int r, std::size_t n) { return ring_all_gather(r, ranks, n, piece, piece); });
      for (std::size_t i = 0; i < length; ++i) {
        const float own = scattered.values[i / piece][i];
        double exact = 0, size = 0;
        for (const auto& v : values) exact += v[i], size += std::abs(v[i]);
        EXPECT_NEAR(own, exact, 1e-6 * size);
        for (const auto& of_rank : gathered.values) EXPECT_EQ(of_rank[i], own);
      }
    }
}

}  // namespace
}  // namespace ringtrain
