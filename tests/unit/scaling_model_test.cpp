// Compares the scaling model with closed forms, and with a simulation of single messages.
#include "bench/scaling_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace ringtrain {
namespace {

constexpr Link node_link = {2e-6, 1e-10, 0.5e-6}, network_link = {5e-6, 8e-11, 1e-6};

StepWork some_work() {
  StepWork w;
  w.forward = 0.03, w.backward = 0.06, w.update = 0.002;
  w.accumulation = 2;
  w.elements = 10'000'000, w.bucket_elements = 262'144;
  return w;
}

Cluster cluster(int ranks, int ranks_per_node, SumAlgorithm algorithm = SumAlgorithm::ring) {
  return {filled_nodes(ranks, ranks_per_node), {node_link, network_link}, algorithm};
}
Cluster one_node(int ranks, const Link& link) {
  return {filled_nodes(ranks, ranks), {link, link}};
}

// Simulates every message of a ring. Rank r can send in step s when it has received in step s - 1. A link carries one
// message at a time.
double simulated_ring(const std::vector<Link>& to_the_right, double bytes) {
  const std::size_t p = to_the_right.size();
  std::vector<double> received(p, 0.0), link_free(p, 0.0);
  for (std::size_t step = 0; step < 2 * (p - 1); ++step) {
    std::vector<double> next(p);
    for (std::size_t r = 0; r < p; ++r) {
      const Link& link = to_the_right[r];
      const double start = std::max(received[r], link_free[r]);
      link_free[r] = start + link.alpha + link.beta * bytes / static_cast<double>(p);
      next[(r + 1) % p] = link_free[r];
    }
    received = next;
  }
  return *std::max_element(received.begin(), received.end());
}

// The cost of a sum on ranks that all have the same link.
SumCost ring_cost(const Link& link, int ranks, double bytes) {
  return sum_cost(SumAlgorithm::ring, filled_nodes(ranks, ranks), {link, link}, bytes);
}
SumCost halving_cost(const Link& link, int ranks, double bytes) {
  return sum_cost(SumAlgorithm::halving, filled_nodes(ranks, ranks), {link, link}, bytes);
}

TEST(ScalingModel, ASmallSumByHalvingTakesHalfAsManyMessagesOfAllBytes) {
  const Link link{.alpha = 1e-6, .beta = 1e-9};
  const SumCost small = halving_cost(link, 8, 4096), large = halving_cost(link, 8, 1 << 20);
  EXPECT_DOUBLE_EQ(small.latency, 3e-6);
  EXPECT_DOUBLE_EQ(small.transfer, 3 * 4096e-9);
  EXPECT_DOUBLE_EQ(large.latency, 6e-6);
  EXPECT_DOUBLE_EQ(large.transfer, 2 * 7.0 / 8 * (1 << 20) * 1e-9);
}

TEST(ScalingModel, ARingCostsWhatItsMessagesCostOneByOne) {
  for (const int p : {2, 3, 4, 7, 16, 64})
    for (const double bytes : {4e3, 1e6, 1e8})
      EXPECT_NEAR(ring_cost(network_link, p, bytes).alone(),
                  simulated_ring(std::vector<Link>(static_cast<std::size_t>(p), network_link), bytes), 1e-9 * bytes)
          << p << " ranks, " << bytes << " bytes";
}

TEST(ScalingModel, AFlatRingThroughNodesIsAsSlowAsItsSlowestLink) {
  for (const double bytes : {4e3, 1e6, 1e8}) {
    std::vector<Link> links(12, node_link);
    for (const std::size_t last : {3u, 7u, 11u}) links[last] = network_link;  // 3 nodes x 4 ranks
    const double simulated = simulated_ring(links, bytes);
    const double model = sum_cost(cluster(12, 4), bytes).alone();
    // Messages of the slow links follow one another around the ring. The model's bound is reached, except for the first
    // lap.
    EXPECT_GE(model, simulated * (1 - 1e-9));
    EXPECT_LE(model, simulated * 1.25) << bytes;
  }
}

TEST(ScalingModel, AHierarchicalSumIsItsThreeParts) {
  const double bytes = 1e7;
  const Cluster c = cluster(32, 8);
  const double inside = simulated_ring(std::vector<Link>(8, node_link), bytes);  // reduce-scatter and all-gather
  // The eight ranks of a node halve an eighth of the bytes each with the other three nodes, over one network.
  const double between = 4 * network_link.alpha + 2 * 3.0 / 4 * bytes / 8 * 8 * network_link.beta;
  EXPECT_NEAR(sum_cost(cluster(32, 8, SumAlgorithm::hierarchical), bytes).alone(), inside + between, 1e-12);
}

TEST(ScalingModel, WithOneRankPerNodeOrOneNodeEveryMessageHasTheSameLink) {
  EXPECT_EQ(sum_cost(cluster(1, 8), 1e6).alone(), 0);
  EXPECT_EQ(sum_cost(cluster(16, 1), 1e6).alone(), ring_cost(network_link, 16, 1e6).alone());
  EXPECT_EQ(sum_cost(cluster(8, 8), 1e6).alone(), ring_cost(node_link, 8, 1e6).alone());
  EXPECT_EQ(sum_cost(cluster(16, 1), 1e6).occupancy(), ring_cost(network_link, 16, 1e6).occupancy());
  EXPECT_EQ(sum_cost(cluster(16, 1, SumAlgorithm::halving), 1e6).alone(), halving_cost(network_link, 16, 1e6).alone());
}

TEST(ScalingModel, ManyRanksPayForLatencyInTheFlatRingAndLessInTheHierarchicalOne) {
  const Cluster c = cluster(4096, 8);
  EXPECT_NEAR(sum_cost(c, 4).latency, 2 * 4095 * 5e-6, 1e-12);
  EXPECT_NEAR(sum_cost(cluster(4096, 8, SumAlgorithm::hierarchical), 4).latency, 9 * 5e-6 + 2 * 7 * 2e-6, 1e-12);
}

TEST(ScalingModel, SumsThatGoThroughNodesAndNetworkOverlapWithTheNextOne) {
  const Cluster c = cluster(32, 8, SumAlgorithm::halving);
  const SumCost cost = sum_cost(c, 1e7);
  // Of the bytes, 7/8 go there and back in the node; 3/32 go there and back through the network, for 8 ranks at once.
  const double in_ranks = 2 * 31.0 / 32 * 1e7 * node_link.beta, on_network = 2 * 3.0 / 4 * 1e7 * network_link.beta;
  EXPECT_NEAR(cost.alone(),
              6 * node_link.alpha + 4 * network_link.alpha + 2 * 7.0 / 8 * 1e7 * node_link.beta + on_network, 1e-12);
  EXPECT_NEAR(cost.occupancy(), 6 * node_link.gap + 4 * network_link.gap + in_ranks, 1e-12);
  EXPECT_LT(cost.occupancy(), cost.alone());
  Cluster slow_network = c;
  slow_network.links.network.beta *= 10;
  EXPECT_NEAR(sum_cost(slow_network, 1e7).occupancy(), cost.gap + 10 * on_network, 1e-12);
}

TEST(ScalingModel, ALatencyOfTheNodeHoldsBetweenNodesToo) {
  Cluster c = cluster(32, 8);
  c.links.network.alpha = c.links.network.gap = 0;  // a network of stated bandwidth and no stated latency
  EXPECT_NEAR(sum_cost(c, 4).latency, 62 * node_link.alpha, 1e-12);
  EXPECT_NEAR(sum_cost(c, 4).gap, 62 * node_link.gap, 1e-12);
}

TEST(ScalingModel, AFitFindsTheLinkThatMadeTheSamples) {
  std::vector<SumSample> samples;
  for (const int p : {2, 4, 8})
    for (std::int64_t bytes = 4096; bytes <= 1 << 26; bytes *= 4)
      samples.push_back({p, bytes, ring_cost(network_link, p, static_cast<double>(bytes)).alone()});
  const SumCost small = ring_cost(network_link, 4, 4096);
  samples.push_back({4, 4096, small.alone() + 15 * small.occupancy(), 16});
  const Link fit = fit_link(samples);
  EXPECT_NEAR(fit.alpha, network_link.alpha, 1e-6 * network_link.alpha);
  EXPECT_NEAR(fit.beta, network_link.beta, 1e-6 * network_link.beta);
  EXPECT_NEAR(fit.gap, network_link.gap, 1e-6 * network_link.gap);
  EXPECT_LT(fit.error, 1e-6);
}

TEST(ScalingModel, AFitOfNoisySamplesSaysHowNoisyTheyAre) {
  std::vector<SumSample> samples;
  for (int i = 0; i < 200; ++i) {
    const std::int64_t bytes = 4096 << (2 * (i % 8));
    const double off = i / 8 % 2 == 0 ? 1.1 : 0.9;
    samples.push_back({2, bytes, off * ring_cost(node_link, 2, static_cast<double>(bytes)).alone()});
  }
  const Link fit = fit_link(samples);
  EXPECT_NEAR(fit.alpha, node_link.alpha, 0.03 * node_link.alpha);
  EXPECT_NEAR(fit.beta, node_link.beta, 0.03 * node_link.beta);
  EXPECT_NEAR(fit.error, 0.1, 0.02);
}

TEST(ScalingModel, AFitIsNotLedAstrayByOneSampleThatWasHeldUp) {
  for (const double disturbance : {3.0, 100.0}) {
    std::vector<SumSample> samples;
    for (std::int64_t bytes = 4096; bytes <= 1 << 26; bytes *= 4)
      samples.push_back({2, bytes, ring_cost(network_link, 2, static_cast<double>(bytes)).alone()});
    samples[3].seconds *= disturbance;
    const Link fit = fit_link(samples);
    EXPECT_NEAR(fit.alpha, network_link.alpha, 1e-3 * network_link.alpha) << disturbance;
    EXPECT_NEAR(fit.beta, network_link.beta, 1e-3 * network_link.beta) << disturbance;
  }
}

TEST(ScalingModel, AFitOfOddSamplesHasNoNegativeTimes) {
  const std::vector<SumSample> faster_when_larger = {{2, 1000, 1e-3}, {2, 1'000'000, 1e-4}};
  const std::vector<SumSample> steeper_than_a_line = {{2, 1000, 1e-9}, {2, 1'000'000, 1e-3}};
  const std::vector<SumSample> one_size = {{2, 1000, 1e-6}, {2, 1000, 2e-6}};
  for (const auto& samples : {faster_when_larger, steeper_than_a_line, one_size, std::vector<SumSample>{}}) {
    const Link fit = fit_link(samples);
    EXPECT_GE(fit.alpha, 0);
    EXPECT_GE(fit.beta, 0);
    EXPECT_LE(fit.gap, fit.alpha);
  }
}

TEST(ScalingModel, OneRankHasNothingToWaitFor) {
  const StepTime t = step_time(some_work(), cluster(1, 8));
  EXPECT_DOUBLE_EQ(t.total(), 2 * (0.03 + 0.06) + 0.002);
  EXPECT_EQ(t.exposed, 0);
}

// Simulates the same timeline in slices of time. There are a queue of buckets, a channel, and a core that computes at
// the rate that the sums leave.
double simulated_backward(const StepWork& w, const Cluster& c, double slice) {
  std::vector<std::int64_t> ends;
  for (std::int64_t e = 0; e < w.elements;) ends.push_back(e = std::min(e + w.bucket_elements, w.elements));
  double computed = 0, channel_free = 0, last_end = 0, now = 0;
  std::size_t next = 0;
  std::int64_t begin = 0;
  while (computed < w.backward || next < ends.size()) {
    while (next < ends.size() &&
           computed >= w.backward * static_cast<double>(ends[next]) / static_cast<double>(w.elements) - 1e-12) {
      const SumCost cost = sum_cost(c, 4.0 * static_cast<double>(ends[next] - begin));
      const double start = std::max(now, channel_free);
      channel_free = start + cost.occupancy();
      last_end = std::max(last_end, start + cost.alone());
      begin = ends[next++];
    }
    computed = std::min(w.backward, computed + slice * (now < channel_free ? 1 - w.busy : 1.0));
    now += slice;
  }
  return std::max(now, last_end);
}

TEST(ScalingModel, TheTimelineOfBucketsIsThatOfASimulationInSlices) {
  for (const int ranks : {2, 8, 64, 512})
    for (const double busy : {0.0, 0.3, 0.9}) {
      StepWork w = some_work();
      w.busy = busy;
      Cluster c = cluster(ranks, 8);
      const double model = w.backward + step_time(w, c).exposed;
      const double counters = std::ceil(std::log2(std::min(ranks, 8))) * node_link.alpha +
                              std::ceil(std::log2((ranks + 7) / 8)) * network_link.alpha;
      EXPECT_NEAR(model, simulated_backward(w, c, 1e-6) + counters, 1e-4) << ranks << " ranks, busy " << busy;
    }
}

TEST(ScalingModel, SumsThatTakeTheWholeCoreAddTheirWholeTime) {
  StepWork w = some_work();
  w.busy = 1;
  const Cluster c = one_node(2, {0, 1e-10, 0});
  EXPECT_NEAR(step_time(w, c).exposed, 4e7 * 1e-10, 1e-9);
}

TEST(ScalingModel, FastSumsLeaveOnlyTheLastBucketExposed) {
  const StepWork w = some_work();
  const Cluster c = one_node(2, {0, 1e-10, 0});
  const std::int64_t last = w.elements % w.bucket_elements;
  // The last bucket's own time is exposed. The bucket before it adds nothing, because the backward pass takes ten times
  // longer than the sums.
  EXPECT_NEAR(step_time(w, c).exposed, static_cast<double>(last) * 4 * 1e-10, 2e-5);
}

TEST(ScalingModel, AGradientThatIsFinalOnlyAtTheEndHidesNothing) {
  StepWork w = some_work();
  w.watermark = {{1.0, 1.0}};
  const Cluster c = one_node(4, {0, 1e-10, 0});
  EXPECT_NEAR(step_time(w, c).exposed, 1.5 * 4e7 * 1e-10, 1e-9);
}

TEST(ScalingModel, AWatermarkThatRisesWithEachBucketIsThatOfNoPoints) {
  StepWork even = some_work(), stepped = some_work();
  even.bucket_elements = stepped.bucket_elements = even.elements / 2;
  stepped.watermark = {{0.5, 0.5}, {1.0, 1.0}};
  const Cluster c = one_node(2, {0, 1e-10, 0});
  EXPECT_DOUBLE_EQ(step_time(stepped, c).exposed, step_time(even, c).exposed);
  EXPECT_GT(step_time(even, c).exposed, 1e-3);
}

TEST(ScalingModel, TheCountersOfAStepTakeARoundForEachDoublingOfRanks) {
  StepWork w = some_work();
  w.elements = 0;
  EXPECT_NEAR(step_time(w, cluster(8, 8)).exposed, 3 * 2e-6, 1e-12);
  EXPECT_NEAR(step_time(w, cluster(64, 8)).exposed, 3 * 2e-6 + 3 * 5e-6, 1e-12);
}

TEST(ScalingModel, WhatANegativeRestTakesAwayIsHalfOfTheComputationAtMost) {
  StepWork w = some_work();
  const double computation = 2 * (0.03 + 0.06) + 0.002;
  w.unexplained = -0.01;
  EXPECT_DOUBLE_EQ(step_time(w, cluster(1, 1)).compute, computation - 0.01);
  w.unexplained = -1;
  const StepTime t = step_time(w, cluster(1, 1));
  EXPECT_DOUBLE_EQ(t.compute, computation / 2);
  EXPECT_EQ(t.exposed, 0);
}

TEST(ScalingModel, AnEarlyWatermarkHidesMoreThanALateOne) {
  StepWork early = some_work(), late = some_work();
  early.watermark = {{0.1, 0.9}, {1.0, 1.0}};
  late.watermark = {{0.9, 0.1}, {1.0, 1.0}};
  const Cluster c = cluster(8, 8);
  EXPECT_LT(step_time(early, c).exposed, step_time(late, c).exposed);
}

TEST(ScalingModel, ALoaderIsHiddenUntilItIsSlowerThanTheRest) {
  StepWork w = some_work();
  w.input = 0.1;
  EXPECT_EQ(step_time(w, cluster(1, 1)).input, 0);
  w.input = 0.5;
  EXPECT_DOUBLE_EQ(step_time(w, cluster(1, 1)).total(), 0.5);
}

TEST(ScalingModel, BusyIsFoundAgainFromTheStepThatItGives) {
  const Cluster c = one_node(2, {1e-6, 1e-9, 0});
  for (const double busy : {0.1, 0.5, 0.8}) {
    StepWork w = some_work();
    w.busy = busy;
    EXPECT_NEAR(fit_busy(w, c, step_time(w, c).total()), busy, 1e-6);
  }
  EXPECT_NEAR(fit_busy(some_work(), c, 0), 0, 1e-6);
  EXPECT_NEAR(fit_busy(some_work(), c, 100), 1, 1e-6);
}

TEST(ScalingModel, APassBetweenMeasuredSizesIsOnTheLineThroughThem) {
  const std::vector<PassTime> measured = {{8, 1.8, 2.8}, {16, 2.6, 4.6}, {64, 7.4, 14.6}};  // forward: 1 + m / 10
  EXPECT_NEAR(pass_at(measured, 12).forward, 2.2, 1e-12);
  EXPECT_NEAR(pass_at(measured, 16).forward, 2.6, 1e-12);
  EXPECT_NEAR(pass_at(measured, 40).forward, 5.0, 1e-12);
  EXPECT_NEAR(pass_at(measured, 4).forward, 1.4, 1e-12) << "the line's constant part stays";
  EXPECT_NEAR(pass_at(measured, 128).forward, 14.8, 1e-12) << "in proportion";
  EXPECT_NEAR(pass_at(std::span(measured).first(1), 4).backward, 1.4, 1e-12) << "one size: in proportion";
  const std::vector<PassTime> curved = {{8, 1, 1}, {16, 2, 2}, {32, 8, 8}};
  EXPECT_NEAR(pass_at(curved, 24).forward, 5, 1e-12) << "the neighbours' line";
  const std::vector<PassTime> bent = {{8, 1, 1}, {16, 3, 3}};
  EXPECT_NEAR(pass_at(bent, 4).forward, 0.5, 1e-12) << "never less than in proportion";
}

TEST(ScalingModel, RanksTakeTurnsWhereTheCoresDoNotSuffice) {
  EXPECT_EQ(crowding(1, 1, 2), 1);
  EXPECT_EQ(crowding(2, 1, 2), 1);
  EXPECT_EQ(crowding(4, 1, 2), 2);
  EXPECT_EQ(crowding(2, 8, 16), 1);
}

TEST(ScalingModel, TurnsCostEachFurtherThreadASlowdownAndAWait) {
  const CoreSharing core_sharing = {0.1, 1e-4};
  EXPECT_EQ(core_sharing.slower(1), 1);
  EXPECT_DOUBLE_EQ(core_sharing.slower(2), 2 * 1.1);
  EXPECT_DOUBLE_EQ(core_sharing.slower(4), 4 * 1.3);
  EXPECT_DOUBLE_EQ(CoreSharing{}.slower(3), 3) << "turns and no more";
  EXPECT_DOUBLE_EQ(core_sharing.slower(node_link, 1).alpha, node_link.alpha);
  EXPECT_DOUBLE_EQ(core_sharing.slower(node_link, 3).alpha, 3 * node_link.alpha + 2e-4);
  EXPECT_DOUBLE_EQ(core_sharing.slower(node_link, 3).beta, 3 * node_link.beta) << "bytes do not wait";
}

TEST(ScalingModel, AMessagesWaitIsFoundAgainFromTheStepThatItGives) {
  const StepWork w = some_work();
  const Cluster c = cluster(4, 4);
  for (const double wait : {1e-5, 1e-3}) {
    const CoreSharing core_sharing = {0, wait};
    const Cluster slower = one_node(4, core_sharing.slower(c.links.node, 2));
    const double seconds = step_time(w, slower).total();
    EXPECT_NEAR(fit_message_wait(w, c, 2, seconds), wait, 1e-3 * wait);
  }
  EXPECT_NEAR(fit_message_wait(w, c, 2, 1e-3), 0, 1e-9) << "faster than the turns alone";
  EXPECT_EQ(fit_message_wait(w, c, 1, 10), 0) << "no turns to wait for";
}

TEST(ScalingModel, AFullNodeSlowsARankByItsShareOfTheFullNode) {
  EXPECT_DOUBLE_EQ(full_node_slowdown(1.4, 1, 1, 9), 1);
  EXPECT_DOUBLE_EQ(full_node_slowdown(1.4, 5, 1, 9), 1.2);
  EXPECT_DOUBLE_EQ(full_node_slowdown(1.4, 9, 1, 9), 1.4);
  EXPECT_DOUBLE_EQ(full_node_slowdown(1.4, 18, 1, 9), 1.4) << "fuller than full: turns";
  EXPECT_DOUBLE_EQ(full_node_slowdown(1.4, 2, 2, 2), 1) << "measured on a full node";
}

TEST(ScalingModel, ARangeHoldsThePredictionAndGrowsWithEveryUncertainty) {
  const StepWork w = some_work();
  const Cluster c = cluster(64, 8);
  const double expected = step_time(w, c).total();
  const StepRange certain = step_range(w, c, {});
  EXPECT_DOUBLE_EQ(certain.low, expected);
  EXPECT_DOUBLE_EQ(certain.high, expected);
  const StepRange model = step_range(w, c, {.model = 0.25});
  EXPECT_DOUBLE_EQ(model.low, expected / 1.25);
  EXPECT_DOUBLE_EQ(model.high, expected * 1.25);
  const StepRange sums = step_range(w, c, {.sums = 0.3});
  EXPECT_LT(sums.low, expected);
  EXPECT_GT(sums.high, expected);
  const StepRange jitter = step_range(w, c, {.jitter = 0.1});
  EXPECT_DOUBLE_EQ(jitter.low, expected);
  EXPECT_GT(jitter.high, expected);
  const StepRange one_rank = step_range(w, cluster(1, 8), {.compute = 0.1});
  EXPECT_DOUBLE_EQ(one_rank.low, step_time(w, cluster(1, 8)).total() / 1.1);
  EXPECT_DOUBLE_EQ(one_rank.high, 1.1 * step_time(w, cluster(1, 8)).total());
  const StepRange alone = step_range(w, cluster(1, 8), {.jitter = 0.1});
  EXPECT_DOUBLE_EQ(alone.high, step_time(w, cluster(1, 8)).total()) << "nobody to wait for";
}

}  // namespace
}  // namespace ringtrain
