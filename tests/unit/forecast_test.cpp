// Tests predictions from measurements: which measurements are chosen, scaled and refused, and the file that bench
// writes and predict reads.
#include "bench/forecast.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "bench/benchmarks.h"
#include "bench/preflight.h"
#include "tests/unit/with_folder.h"

namespace ringtrain {
namespace {

Experiment experiment() {
  Experiment e;
  e.name = "forecast";
  e.batch.global = 256;
  e.batch.worker = 16;
  return e;
}

// A measurement of `ranks` ranks with one thread each, on a node of two cores. Passes have 8 and 32 samples. The
// forward pass takes 1 ms + 0.1 ms per sample, and the backward pass takes twice that.
Preflight measured(int ranks, double slower = 1) {
  Preflight p;
  p.version = "1.0";
  p.hosts = {"a"};
  p.ranks = p.ranks_per_node = ranks;
  p.has_step = true;
  StepMeasurement& s = p.step;
  s.model = model_keys(experiment());
  s.micro_batch = 32, s.rows_per_rank = 256 / ranks, s.accumulation = s.rows_per_rank / 32;
  for (const double m : {8.0, 32.0}) s.passes.push_back({m, slower * (1e-3 + 1e-4 * m), slower * (2e-3 + 2e-4 * m)});
  s.forward = s.passes.back().forward, s.backward = s.passes.back().backward, s.update = 1e-3;
  s.seconds = static_cast<double>(s.accumulation) * (s.forward + s.backward) + s.update;
  s.parameters = 999'000, s.elements = 1'000'000, s.bucket_mib = 1;
  s.ranks = s.ranks_per_node = ranks;
  s.threads = 1, s.cores_per_node = 2;
  return p;
}

Preflight with_links(Preflight p, bool network) {
  p.fit["node"] = {1e-6, 1e-10, 1e-6};
  if (network) p.fit["network"] = {1e-5, 1e-9, 1e-6};
  return p;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return cat(e.what(), " | ", e.hint());
  }
  return "no error";
}

TEST(Forecast, OneRankIsWhatWasMeasured) {
  const Forecast f(experiment(), {measured(1)}, {});
  const ForecastRow row = f.row(Scaling::strong, Topology::flat, 1);
  EXPECT_NEAR(row.step.total(), measured(1).step.seconds, 1e-12);
  EXPECT_DOUBLE_EQ(row.efficiency, 1);
  EXPECT_EQ(row.global_batch, 256);
}

TEST(Forecast, StrongScalingKeepsTheBatchAndWeakScalingTheRows) {
  const Forecast f(experiment(), {with_links(measured(1), true)}, {.ranks_per_node = 4, .cores_per_node = 4});
  for (const int ranks : {2, 4, 16}) {
    const ForecastRow strong = f.row(Scaling::strong, Topology::flat, ranks);
    EXPECT_EQ(strong.global_batch, 256);
    EXPECT_EQ(strong.rows_per_rank, 256 / ranks);
    EXPECT_EQ(strong.nodes, (ranks + 3) / 4);
    const ForecastRow weak = f.row(Scaling::weak, Topology::flat, ranks);
    EXPECT_EQ(weak.rows_per_rank, 256);
    EXPECT_EQ(weak.global_batch, 256 * ranks);
    EXPECT_LT(weak.efficiency, 1);
    EXPECT_LT(strong.efficiency, weak.efficiency) << "the same sums for less computing";
  }
}

TEST(Forecast, StrongScalingEndsAtTheVirtualWorkers) {
  const Forecast f(experiment(), {with_links(measured(1), true)}, {});
  EXPECT_NO_THROW(f.row(Scaling::strong, Topology::flat, 16));
  EXPECT_NE(refusal([&] { f.row(Scaling::strong, Topology::flat, 32); }), "no error");
  EXPECT_NO_THROW(f.row(Scaling::weak, Topology::flat, 4096));
}

TEST(Forecast, RanksThatShareCoresTakeTurns) {
  const Forecast roomy(experiment(), {with_links(measured(1), false)}, {.ranks_per_node = 4, .cores_per_node = 4});
  const Forecast crowded(experiment(), {with_links(measured(1), false)}, {.ranks_per_node = 4, .cores_per_node = 2});
  const auto seconds = [](const Forecast& f) { return f.row(Scaling::weak, Topology::flat, 4).step.total(); };
  EXPECT_NEAR(seconds(crowded), 2 * seconds(roomy), 1e-9);
  EXPECT_NEAR(roomy.row(Scaling::weak, Topology::flat, 2).step.total(),
              crowded.row(Scaling::weak, Topology::flat, 2).step.total(), 1e-12);
}

TEST(Forecast, WhatTurnsCostBesideThemselvesIsMeasuredOnTwoRanksAndUsedForMore) {
  Preflight two = with_links(measured(2), false);
  const double pass = two.step.forward + two.step.backward;
  two.step.shared_pass = 2 * 1.1 * pass;  // a tenth more than taking turns
  const Forecast unmeasured(experiment(), {two}, {.ranks_per_node = 4});
  EXPECT_NEAR(unmeasured.core_sharing().slowdown, 0, 1e-12) << "a pass alone does not say how long messages wait";
  two.step.shared_step =
      static_cast<double>(two.step.accumulation) * two.step.shared_pass + 2.2 * two.step.update + 0.05;
  const Forecast f(experiment(), {two}, {.ranks_per_node = 4});
  EXPECT_TRUE(f.core_sharing_is_measured());
  EXPECT_NEAR(f.core_sharing().slowdown, 0.1, 1e-9);
  EXPECT_GT(f.core_sharing().message_wait, 0);

  const ForecastRow apart = f.row(Scaling::weak, Topology::flat, 2), shared = f.row(Scaling::weak, Topology::flat, 4);
  EXPECT_EQ(apart.crowding, 1);
  EXPECT_EQ(shared.crowding, 2);
  EXPECT_NEAR(shared.step.compute, 2.2 * apart.step.compute, 1e-9);
  // Most of the 50 ms is the wait for messages. With two ranks there are 9 messages in a row (2 for each of 4 sums, and
  // 1 for the counters). With four ranks there are 18.
  EXPECT_GT(shared.step.exposed, 0.08);
  EXPECT_LT(shared.step.exposed, 0.05 * 18 / 9);
}

TEST(Forecast, TheRangeIsWideOnlyWhereCoresAreSharedAndWidestWhereThatWasNotMeasured) {
  Preflight two = with_links(measured(2), false);
  const auto width = [](const Forecast& f, int ranks) {
    const ForecastRow r = f.row(Scaling::weak, Topology::flat, ranks);
    EXPECT_LE(r.range.low, r.step.total());
    EXPECT_GE(r.range.high, r.step.total());
    return r.range.high / r.range.low;
  };
  const Forecast unmeasured(experiment(), {two}, {.ranks_per_node = 4});
  two.step.shared_pass = 2.2 * (two.step.forward + two.step.backward);
  two.step.shared_step = 2.2 * two.step.seconds;
  const Forecast f(experiment(), {two}, {.ranks_per_node = 4});
  EXPECT_LT(width(f, 2), 1.02);
  EXPECT_GT(width(f, 4), width(f, 2) + 0.1);
  EXPECT_GT(width(unmeasured, 4), width(f, 4) + 0.1);
  EXPECT_GT(width(f, 3), 1.3) << "three on two cores: two of them share one";
}

TEST(Forecast, ARankAloneIsSlowerOnceTheNodeIsFull) {
  Preflight alone = with_links(measured(1), false);
  alone.step.full_node_pass = 1.2 * (alone.step.forward + alone.step.backward);
  const Forecast f(experiment(), {alone}, {.ranks_per_node = 4, .cores_per_node = 4});
  const auto compute = [&](int ranks) { return f.row(Scaling::weak, Topology::flat, ranks).step.compute; };
  EXPECT_NEAR(compute(2), 1.2 * compute(1), 1e-9);
  EXPECT_NEAR(compute(4), 1.2 * compute(1), 1e-9);
}

TEST(Forecast, WhatCrowdedRanksMeasuredIsNotTakenForTheirSpeed) {
  Preflight crowded = with_links(measured(4, 2), false);  // with 4 ranks on 2 cores, everything takes twice as long
  crowded.step.update *= 2;
  crowded.fit["node"] = scaled(crowded.fit["node"], 2);
  crowded.step.seconds = 0;
  Preflight roomy = with_links(measured(4), false);
  roomy.step.cores_per_node = 4;
  roomy.step.seconds = 0;
  const ForecastRow a = Forecast(experiment(), {crowded}, {.cores_per_node = 4}).row(Scaling::weak, Topology::flat, 4);
  const ForecastRow b = Forecast(experiment(), {roomy}, {}).row(Scaling::weak, Topology::flat, 4);
  EXPECT_NEAR(a.step.total(), b.step.total(), 1e-9);
}

TEST(Forecast, RanksThatSlowEachOtherDownAreInterpolated) {
  Preflight alone = with_links(measured(1), false), three_ranks = measured(3, 1.4);
  alone.step.cores_per_node = three_ranks.step.cores_per_node = 8;
  const Forecast f(experiment(), {alone, three_ranks}, {});
  const double one = f.row(Scaling::weak, Topology::flat, 1).step.compute;
  const double two = f.row(Scaling::weak, Topology::flat, 2).step.compute;
  const double three = f.row(Scaling::weak, Topology::flat, 3).step.compute;
  EXPECT_GT(two, one);
  EXPECT_LT(two, three);
}

TEST(Forecast, AStepOfSeveralRanksSaysHowBusyItsSumsKeepTheCore) {
  const Preflight alone = with_links(measured(1), false);
  EXPECT_EQ(Forecast(experiment(), {alone}, {}).busy(), 1);
  EXPECT_FALSE(Forecast(experiment(), {alone}, {}).busy_is_fitted());
  Preflight gpu = alone;
  gpu.step.on_device = true;
  EXPECT_EQ(Forecast(experiment(), {gpu}, {}).busy(), 0);

  Preflight two = with_links(measured(2), false);
  two.step.seconds += 1e-4;  // most of the sums' 400 us is hidden
  const Forecast fitted(experiment(), {alone, two}, {});
  EXPECT_TRUE(fitted.busy_is_fitted());
  EXPECT_LT(fitted.busy(), 0.5);
  EXPECT_NEAR(fitted.compare(two.step).predicted, two.step.seconds, 1e-7);
}

// The measurements have sums that take longer than alone, waits for input, loaders that were measured too slow, steps
// that are faster than their parts, and ranks that share cores. The model explains only a part of these times. The
// forecast adds the rest, so each fitted step must come out as it was measured.
TEST(Forecast, AFittedStepComesOutAsItWasMeasured) {
  Preflight one = with_links(measured(1), false), two = with_links(measured(2), false), four = measured(4, 1.5),
            nodes = with_links(measured(4), true);
  nodes.step.ranks_per_node = nodes.ranks_per_node = 2;
  four.step.seconds *= 1.1;  // less than two turns
  std::vector<std::vector<Preflight>> cases = {{one}, {two}, {one, two}, {one, two, nodes}, {one, two, four}};
  for (const double step_factor : {0.97, 1.0, 1.16})
    for (const double input_factor : {0.99, 1.0, 1.12})
      for (const double waiting : {0.0, 0.03})
        for (const double loader : {0.0, 1000.0, 1e6})
          for (std::vector<Preflight> files : cases) {
            for (Preflight& p : files) {
              if (p.ranks > 1) p.step.seconds *= step_factor;
              p.step.input_seconds = p.step.seconds * input_factor;
              p.step.input_wait = p.step.input_seconds * waiting;
              if (loader > 0) p.input = {{"a", 1e9, loader * p.ranks_per_node}};
            }
            const Forecast f(experiment(), files, {});
            for (const Preflight& p : files) {
              const Forecast::Comparison c = f.compare(p.step);
              EXPECT_NEAR(c.predicted, c.measured, 1e-9)
                  << p.ranks << " ranks of " << files.size() << " files, step " << step_factor << ", input "
                  << input_factor << ", waiting " << waiting << ", loader " << loader;
              EXPECT_LE(c.range.low, c.predicted);
              EXPECT_GE(c.range.high, c.predicted);
              StepMeasurement no_data = p.step;
              no_data.input_seconds = 0;
              const Forecast::Comparison same_input = f.compare(no_data);
              EXPECT_NEAR(same_input.predicted, p.step.seconds, 1e-9) << p.ranks << " ranks on the same input";
            }
          }
}

TEST(Forecast, WhatIsLeftOutGrowsAsTheWaitForTheSlowestRankDoes) {
  Preflight two = with_links(measured(2), false);
  const double explained = Forecast(experiment(), {with_links(measured(1), false)}, {.ranks_per_node = 2})
                               .row(Scaling::strong, Topology::flat, 2)
                               .step.total();
  two.step.seconds = explained + 0.01;  // the sums keep the core busy and take 10 ms more
  const ForecastOptions options = {.cores_per_node = 64};
  const Forecast f(experiment(), {two}, options);
  EXPECT_NEAR(f.busy(), 1, 1e-12) << "fit_busy() halves an interval and ends just below its bound";
  EXPECT_NEAR(f.unexplained(2, 2), 0.01, 1e-6);
  EXPECT_NEAR(f.unexplained(16, 2), 0.02, 2e-6) << "sqrt(ln 16 / ln 2) = 2";
  EXPECT_EQ(f.unexplained(1, 1), 0);
  EXPECT_NEAR(f.row(Scaling::strong, Topology::flat, 2).step.total(), two.step.seconds, 1e-9);
  two.step.seconds = explained;
  const Forecast nothing_left(experiment(), {two}, options);
  const auto exposed = [](const Forecast& forecast) {
    return forecast.row(Scaling::weak, Topology::flat, 16).step.exposed;
  };
  EXPECT_NEAR(exposed(f), exposed(nothing_left) + 0.02, 1e-5);
  EXPECT_GT(f.uncertainty().model, 0.1) << "the model did not say it by itself";
}

TEST(Forecast, AMeasuredWaitForInputIsCarriedBySample) {
  Preflight one = measured(1);
  one.step.input_seconds = one.step.seconds + 0.02;
  one.step.input_wait = 0.015;
  const Forecast f(experiment(), {with_links(one, false)}, {.ranks_per_node = 2});
  EXPECT_NEAR(f.row(Scaling::strong, Topology::flat, 1).step.input, 0.015, 1e-12);
  EXPECT_NEAR(f.row(Scaling::strong, Topology::flat, 2).step.input, 0.0075, 1e-12);
}

TEST(Forecast, SumsHaveTheTopologyThatTheProgramChooses) {
  const Preflight two = with_links(measured(2), true);
  Experiment e = experiment();
  const Forecast f(e, {two}, {.ranks_per_node = 12, .cores_per_node = 12});
  EXPECT_EQ(f.chosen_topology(12), Topology::flat) << "one node";
  EXPECT_EQ(f.chosen_topology(192), Topology::hierarchical) << "nodes of odd sizes are summed first";
  EXPECT_FALSE(f.row(Scaling::weak, Topology::flat, 192).chosen);
  EXPECT_TRUE(f.row(Scaling::weak, Topology::hierarchical, 192).chosen);
  EXPECT_TRUE(f.has_hierarchical_sums(24));
  EXPECT_FALSE(f.has_hierarchical_sums(12)) << "one node";
  EXPECT_FALSE(f.has_hierarchical_sums(25)) << "a node with one rank";
  const auto flat_seconds = [&](const char* algorithm, const char* order) {
    e.communication.algorithm = algorithm, e.communication.order = order;
    const Forecast of(e, {two}, {.ranks_per_node = 12, .cores_per_node = 12});
    EXPECT_EQ(of.chosen_topology(192), Topology::flat) << algorithm;
    return of.row(Scaling::weak, Topology::flat, 192).step.total();
  };
  const double ring = flat_seconds("ring", "any"), halving = flat_seconds("halving", "any");
  EXPECT_NE(ring, halving);
  EXPECT_EQ(flat_seconds("auto", "fixed"), halving);
  e.communication.algorithm = "hierarchical", e.communication.order = "any";
  EXPECT_EQ(Forecast(e, {two}, {.ranks_per_node = 12}).chosen_topology(24), Topology::hierarchical);
  Preflight device = two;
  device.step.on_device = true;
  EXPECT_EQ(Forecast(e, {device}, {.ranks_per_node = 12}).chosen_topology(24), Topology::flat);
  EXPECT_FALSE(Forecast(e, {device}, {.ranks_per_node = 12}).has_hierarchical_sums(24));
}

TEST(Forecast, SumsThatTheProgramCannotMakeAreRefused) {
  const Preflight two = with_links(measured(2), true);
  Experiment e = experiment();
  e.communication.algorithm = "hierarchical";
  const Forecast f(e, {two}, {.ranks_per_node = 8, .cores_per_node = 8});
  EXPECT_NE(refusal([&] { f.row(Scaling::weak, Topology::flat, 12); }).find("one node has 4 ranks and another 8"),
            std::string::npos);
  // On one node, a hierarchical sum is a reduce-scatter and an all-gather with as many messages as a ring.
  const double hierarchical = f.row(Scaling::weak, f.chosen_topology(8), 8).step.total();
  e.communication.algorithm = "ring";
  const Forecast ring(e, {two}, {.ranks_per_node = 8, .cores_per_node = 8});
  EXPECT_NEAR(hierarchical, ring.row(Scaling::weak, Topology::flat, 8).step.total(), 1e-12);
  e.communication.algorithm = "tree";
  EXPECT_NE(refusal([&] { Forecast(e, {two}, {}).row(Scaling::weak, Topology::flat, 2); }).find("tree is NCCL's"),
            std::string::npos);
  e.communication.algorithm = "auto", e.parallel.shard_state = true;
  const Forecast shares(e, {two}, {.ranks_per_node = 8, .cores_per_node = 8});
  EXPECT_EQ(shares.chosen_topology(64), Topology::flat) << "shares of the state go around a ring";
  EXPECT_FALSE(shares.has_hierarchical_sums(64));
  EXPECT_EQ(shares.row(Scaling::weak, Topology::flat, 64).step.total(),
            ring.row(Scaling::weak, Topology::flat, 64).step.total());
}

TEST(Forecast, TheChoiceIsMadeForTheBytesOfASum) {
  Preflight two = with_links(measured(2), true);
  const auto topology = [&](std::int64_t elements) {
    two.step.elements = elements;
    return Forecast(experiment(), {two}, {.ranks_per_node = 8}).chosen_topology(96);
  };
  EXPECT_EQ(topology(2000), Topology::flat) << "a small model is summed by doubling";
  EXPECT_EQ(topology(1'000'000), Topology::hierarchical);
}

// On 16 ranks, the fastest flat sum of the fitted links changes with the wait: a ring without it, and halving with it.
// The program's choice does not.
TEST(Forecast, ALongerWaitForMessagesMakesNoStepShorter) {
  Preflight two = measured(2);
  two.fit["node"] = {1e-6, 1 / 5e9, 1e-6}, two.fit["network"] = {2e-6, 1 / 12e9, 2e-6};
  two.step.elements = 25'000'000, two.step.seconds += 0.03;  // the ranks do not compute while they add
  two.step.shared_pass = 2.2 * (two.step.forward + two.step.backward);
  const auto forecast = [&](double shared_step) {
    two.step.shared_step = shared_step;
    return Forecast(experiment(), {two}, {.ranks_per_node = 4});
  };
  std::map<std::pair<int, Topology>, double> exposed;
  for (const double wait : {0.0, 1e-6, 2e-6, 4e-6, 1e-5, 1e-4}) {
    double low = 0, high = 10;  // the step that two ranks on one core take with this wait
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (forecast(middle).core_sharing().message_wait > wait ? high : low) = middle;
    }
    const Forecast f = forecast(low);
    EXPECT_NEAR(f.core_sharing().message_wait, wait, 1e-7);
    for (const int ranks : {4, 12, 16, 24, 36, 512})
      for (const Topology topology : {Topology::flat, Topology::hierarchical}) {
        const ForecastRow r = f.row(Scaling::weak, topology, ranks);
        EXPECT_LE(r.range.low, r.step.total()) << ranks << " ranks, " << wait;
        EXPECT_GE(r.range.high, r.step.total()) << ranks << " ranks, " << wait;
        double& before = exposed[{ranks, topology}];
        EXPECT_GE(r.step.exposed, before - 1e-7) << ranks << " ranks, " << wait;
        before = r.step.exposed;
      }
  }
}

// Other work on the machine can make any of these times too long.
TEST(Forecast, MeasurementsThatContradictEachOtherStillGivePositiveTimes) {
  Preflight two = with_links(measured(2), false);
  for (const double step_factor : {0.01, 1.0, 20.0})
    for (const double input_factor : {0.01, 1.0, 20.0}) {
      Preflight p = two;
      p.step.seconds *= step_factor;
      p.step.input_seconds = two.step.seconds * input_factor;
      const Forecast f(experiment(), {p}, {.ranks_per_node = 4});
      for (const int ranks : {1, 2, 4, 16, 4096}) {
        const ForecastRow r = f.row(Scaling::weak, Topology::flat, ranks);
        EXPECT_GT(r.step.compute, 0) << step_factor << ", " << input_factor << ", " << ranks << " ranks";
        EXPECT_GT(r.range.low, 0);
        EXPECT_GE(r.range.high, r.step.total());
        EXPECT_GT(r.efficiency, 0);
      }
    }
}

TEST(Forecast, WhatTheDataSetAddsIsPartOfTheStep) {
  Preflight p = measured(1);
  p.step.input_seconds = p.step.seconds * 1.1;
  EXPECT_NEAR(Forecast(experiment(), {p}, {}).row(Scaling::strong, Topology::flat, 1).step.total(),
              p.step.input_seconds, 1e-12);
}

TEST(Forecast, ASlowLoaderLimitsTheStep) {
  Preflight p = measured(1);
  p.input = {{"a", 1e9, 1000}};
  EXPECT_NEAR(Forecast(experiment(), {p}, {}).row(Scaling::strong, Topology::flat, 1).step.total(), 0.256, 1e-12);
}

TEST(Forecast, ALoaderTakesTheTimeOfCoresThatAllCompute) {
  Preflight p = with_links(measured(1), false);
  p.step.input_seconds = p.step.seconds;  // the second core did the loading, so nothing is added
  const auto seconds = [&](int ranks) {
    const Forecast f(experiment(), {p}, {.ranks_per_node = 2});
    return f.row(Scaling::weak, Topology::flat, ranks).step.total();
  };
  const double without_one = seconds(1), without_two = seconds(2);
  p.input = {{"a", 1e9, 1e5}};
  EXPECT_DOUBLE_EQ(seconds(1), without_one);
  const auto threads = static_cast<double>(experiment().data.loader_threads);
  EXPECT_NEAR(seconds(2), without_two + threads * 256 / 1e5, 1e-9);
}

TEST(Forecast, ANetworkIsMeasuredOrStatedOrAssumedAndSaysSo) {
  const ForecastOptions options = {.ranks_per_node = 1, .network = {1e-4, 1e-8, 1e-4}};
  const auto seconds = [](const Forecast& f) { return f.row(Scaling::weak, Topology::flat, 64).step.total(); };
  const Forecast assumed(experiment(), {with_links(measured(1), false)}, {.ranks_per_node = 1});
  const Forecast stated(experiment(), {with_links(measured(1), false)}, options);
  const Forecast known(experiment(), {with_links(measured(1), true)}, options);
  EXPECT_TRUE(assumed.network_is_assumed());
  EXPECT_FALSE(stated.network_is_assumed());
  EXPECT_LT(seconds(assumed), seconds(known));
  EXPECT_LT(seconds(known), seconds(stated)) << "what was measured counts";
}

TEST(Forecast, NothingIsPredictedFromNothingOrFromAnotherModel) {
  EXPECT_NE(refusal([] { Forecast(experiment(), {}, {}); }).find("ringtrain bench"), std::string::npos);
  Experiment other = experiment();
  other.model.hidden = 999;
  EXPECT_NE(refusal([&] { Forecast(other, {measured(1)}, {}); }).find("model.hidden=999"), std::string::npos);
  const Forecast no_sums(experiment(), {measured(1)}, {});
  EXPECT_NE(refusal([&] { no_sums.row(Scaling::weak, Topology::flat, 2); }), "no error");
}

TEST(Forecast, RanksAreARangeThatDoublesOrAList) {
  EXPECT_EQ(parse_ranks("1..4096").size(), 13u);
  EXPECT_EQ(parse_ranks("3..20"), (std::vector<int>{3, 6, 12, 20}));
  EXPECT_EQ(parse_ranks("4..4"), (std::vector<int>{4}));
  EXPECT_NE(refusal([] { parse_ranks("64..8"); }).find("expected the smaller number first"), std::string::npos);
  EXPECT_EQ(parse_ranks("1,2,48"), (std::vector<int>{1, 2, 48}));
  for (const std::string wrong : {"", "0..4", "x", "1..", "1,,2", "1.5"}) {
    const std::string said = refusal([&] { parse_ranks(wrong); });
    EXPECT_NE(said.find(cat("--ranks is ", shown(wrong), "; expected 1..4096")), std::string::npos) << said;
  }
}

TEST(Preflight, AFileSaysWhatWasMeasured) {
  Preflight p = with_links(measured(2, 1.5), true);
  p.comm = {{"node", {2, 4096, 1e-5}}, {"network", {2, 4096, 2e-5, 16}}};
  p.input = {{"a", 1e9, 5e4}};
  p.step.watermark = {{0.5, 0.25}, {1, 1}};
  p.step.jitter = 0.01, p.step.input_seconds = 0.5, p.step.input_wait = 0.125, p.step.element_bytes = 2;
  p.step.on_device = p.step.whole_workers = true;
  p.step.full_node_pass = 0.25, p.step.shared_pass = 0.5, p.step.shared_step = 0.75;
  p.clock_skew_seconds = {0, 0.25};
  p.slow = {{"a", "computing", 1.5}};
  const std::string text = p.to_json();
  const Preflight read = parse_preflight(text, "p.json");
  EXPECT_EQ(read.to_json(), text);
  // A value that is neither written nor read would pass the comparison above.
  EXPECT_EQ(read.version, "1.0");
  EXPECT_EQ(read.hosts, p.hosts);
  EXPECT_EQ(std::pair(read.ranks, read.ranks_per_node), std::pair(2, 2));
  ASSERT_EQ(read.comm.size(), 2u);
  EXPECT_EQ(read.comm[1].scope, "network");
  const auto numbers_of_sum = [](const SumSample& s) { return std::tuple(s.ranks, s.bytes, s.seconds, s.sums); };
  EXPECT_EQ(numbers_of_sum(read.comm[0].sample), std::tuple(2, 4096, 1e-5, 1));
  EXPECT_EQ(numbers_of_sum(read.comm[1].sample), std::tuple(2, 4096, 2e-5, 16));
  ASSERT_EQ(read.fit.size(), 2u);
  const Link& link = read.fit.at("network");
  EXPECT_EQ(std::tuple(link.alpha, link.beta, link.gap), std::tuple(1e-5, 1e-9, 1e-6));
  ASSERT_EQ(read.input.size(), 1u);
  EXPECT_EQ(std::tuple(read.input[0].host, read.input[0].bytes_per_second, read.input[0].samples_per_second),
            std::tuple("a", 1e9, 5e4));
  EXPECT_EQ(read.clock_skew_seconds, p.clock_skew_seconds);
  ASSERT_EQ(read.slow.size(), 1u);
  EXPECT_EQ(std::tuple(read.slow[0].host, read.slow[0].what, read.slow[0].times_median),
            std::tuple("a", "computing", 1.5));
  const auto times = [](const StepMeasurement& s) {
    return std::vector<double>{s.forward,        s.backward,    s.update,      s.jitter,
                               s.full_node_pass, s.shared_pass, s.shared_step, s.seconds,
                               s.input_seconds,  s.input_wait,  s.bucket_mib,  s.element_bytes};
  };
  const auto counts = [](const StepMeasurement& s) {
    return std::vector<std::int64_t>{s.micro_batch, s.accumulation, s.rows_per_rank,  s.parameters,    s.elements,
                                     s.ranks,       s.threads,      s.ranks_per_node, s.cores_per_node};
  };
  ASSERT_TRUE(read.has_step);
  EXPECT_EQ(read.step.model, p.step.model);
  EXPECT_EQ(times(read.step), times(p.step));
  EXPECT_EQ(counts(read.step), counts(p.step));
  EXPECT_EQ(std::pair(read.step.on_device, read.step.whole_workers), std::pair(true, true));
  ASSERT_EQ(read.step.passes.size(), 2u);
  EXPECT_EQ(read.step.passes[1].backward, p.step.passes[1].backward);
  ASSERT_EQ(read.step.watermark.size(), 2u);
}

TEST(Preflight, AFileOfTheContractAloneIsEnoughForLinksAndOldNames) {
  const Preflight p = parse_preflight(
      R"({"version": "1", "hosts": ["n1"], "ranks": 2, "ranks_per_node": 2,
          "comm": [{"scope": "node", "ranks": 2, "bytes": 4, "seconds": 1e-6}],
          "fit": {"node": {"alpha": 2e-6, "beta": 1e-10}}, "clock_skew_seconds": [0.0]})",
      "p.json");
  EXPECT_EQ(p.comm.at(0).sample.sums, 1);
  EXPECT_EQ(p.fit.at("node").gap, 2e-6) << "one sum after the other";
  EXPECT_FALSE(p.has_step);
}

TEST(Preflight, AStepWithoutRanksOrWithNegativeSecondsIsRefused) {
  for (const auto& [name, bad] : {std::pair{"ranks_per_node", "0"},
                                  {"cores_per_node", "0"},
                                  {"threads", "0"},
                                  {"accumulation", "0"},
                                  {"elements", "0"},
                                  {"rows_per_rank", "-1"},
                                  {"forward", "-0.5"},
                                  {"jitter", "-1"}}) {
    std::string text = measured(2).to_json();
    const std::string key = std::string("\"") + name + "\": ";
    const auto at = text.find(key, text.find("\"step\"")) + key.size();
    text.replace(at, text.find_first_of(",\n", at) - at, bad);
    EXPECT_NE(refusal([&] { parse_preflight(text, "p.json"); }).find(cat("\"", name, "\" is ", bad)), std::string::npos)
        << name;
  }
}

TEST(NodeLoad, HalfOfTheCoresKeepsAllThreadsOfThose) {
  EXPECT_EQ(half_of_cores({0, 1}, {0, 1}), (std::vector<int>{0}));
  EXPECT_EQ(half_of_cores({0, 1, 4, 5}, {0, 1, 0, 1}), (std::vector<int>{0, 4})) << "0 and 4 are one core";
  EXPECT_TRUE(half_of_cores({0, 1, 2}, {0, 1, 2}).empty());
  EXPECT_TRUE(half_of_cores({0, 4}, {0, 0}).empty()) << "one core cannot be halved";
}

TEST(Preflight, ABadFileIsNamed) {
  for (const char* text : {"", "[]", "{}", R"({"version": 3})"})
    EXPECT_NE(refusal([&] { parse_preflight(text, "p.json"); }).find("p.json"), std::string::npos) << text;
  EXPECT_NE(refusal([] { read_preflight("/nowhere.json"); }).find("/nowhere.json"), std::string::npos);
}

TEST(Preflight, AKindThatWasNotMeasuredAgainStays) {
  Preflight earlier = with_links(measured(2), false);
  earlier.comm = {{"node", {2, 4096, 1e-5}}};
  earlier.slow = {{"a", "computing", 1.5}};
  Preflight again;
  again.hosts = {"a"};
  again.ranks = 2;
  again.input = {{"a", 1, 2}};
  Preflight same = again;
  same.keep_from(earlier);
  EXPECT_TRUE(same.has_step);
  EXPECT_EQ(same.comm.size(), 1u);
  EXPECT_EQ(same.fit.count("node"), 1u);
  EXPECT_EQ(same.input.at(0).samples_per_second, 2);
  EXPECT_EQ(same.slow.size(), 1u);
}

TEST(Preflight, AHostThatIsNoLongerSlowIsForgotten) {
  Preflight earlier = with_links(measured(2), false);
  earlier.comm = {{"node", {2, 4096, 1e-5}}};
  earlier.input = {{"a", 1, 2}};
  earlier.slow = {{"a", "computing", 1.5}, {"a", "all-reduce in the node", 1.2}, {"a", "reading", 1.3}};
  Preflight again = measured(2);
  again.keep_from(earlier);
  ASSERT_EQ(again.slow.size(), 2u);
  EXPECT_EQ(again.slow[0].what, "all-reduce in the node");
  EXPECT_EQ(again.slow[1].what, "reading");
}

using PreflightFile = WithFolder;

TEST_F(PreflightFile, OfOtherHostsOrRanksIsRefused) {
  Preflight earlier = with_links(measured(2), false);
  earlier.hosts = {"a"};
  earlier.ranks = 2;
  EXPECT_FALSE(earlier_preflight(path("p.json"), {"a"}, 2));
  std::ofstream(path("p.json")) << earlier.to_json();
  EXPECT_TRUE(earlier_preflight(path("p.json"), {"a"}, 2));
  expect_contains(refusal([&] { earlier_preflight(path("p.json"), {"a"}, 1); }),
                  "p.json has measurements of 2 ranks on a, but this job has 1 rank on a");
  expect_contains(refusal([&] {
                    earlier_preflight(path("p.json"), {"a", "b"}, 2);
                  }),
                  "p.json has measurements of 2 ranks on a, but this job has 2 ranks on a, b");
}

TEST(Preflight, AHostIsSlowWhenItIsATenthWorseThanTheMedian) {
  const auto names = [&](const std::vector<double>& values, bool more_is_worse) {
    Preflight preflight;
    preflight.hosts = {"a", "b", "c", "d", "e"};
    preflight.add_slow_hosts(values, "x", more_is_worse);
    return joined(preflight.slow, "", &SlowHost::host);
  };
  EXPECT_EQ(names({1, 1.05, 1, 1.5, 0.5}, true), "d");
  EXPECT_EQ(names({1, 1.05, 1, 1.5, 0.5}, false), "e");
  EXPECT_EQ(names({1, 1, 1, 1, 1}, true), "");
  EXPECT_EQ(names({1, 1, 1, 1, 0}, false), "e") << "nothing at all";
}

}  // namespace
}  // namespace ringtrain
