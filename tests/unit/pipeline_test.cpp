// Tests where a model is cut into stages, and the order of a stage's passes.
#include "parallel/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "models/models.h"
#include "nn/arena.h"
#include "nn/graph.h"

namespace ringtrain {
namespace {

Graph model(const std::string& kind) {
  ModelConfig config;
  config.kind = kind;
  config.depth = 18;
  config.layers = 3;
  config.hidden = 32;
  const bool text = kind == "char_lstm";
  SampleShape sample{8, 30};
  if (!text) sample = {0, 0, 64, 10, {0.5, 0.5, 0.5}, {0.2, 0.2, 0.2}};
  return build_model(config, sample, {});
}

std::vector<std::string> names_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const ModelLayer& layer : layers_of(graph)) names.push_back(layer.name);
  return names;
}

TEST(Cuts, LayersHaveTheNamesOfTheirTensors) {
  EXPECT_EQ(names_of(model("char_lstm")), (std::vector<std::string>{"lstm.l0", "lstm.l1", "lstm.l2", "linear"}));
  EXPECT_EQ(names_of(model("cnn")), (std::vector<std::string>{"conv1", "conv2", "conv3", "fc"}));
  EXPECT_EQ(names_of(model("alexnet")),
            (std::vector<std::string>{"features.0", "features.3", "features.6", "features.8", "features.10",
                                      "classifier.1", "classifier.4", "classifier.6"}));
  EXPECT_EQ(names_of(model("resnet")),
            (std::vector<std::string>{"conv1", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer3.1",
                                      "layer4.0", "layer4.1", "fc"}));
}

TEST(Cuts, PartsHaveAllTensorsOnceAndAllWork) {
  for (const std::string kind : {"char_lstm", "cnn", "alexnet", "resnet"}) {
    const Graph graph = model(kind);
    const std::vector<ModelLayer> layers = layers_of(graph);
    for (std::size_t cut = 1; cut < layers.size(); ++cut) {
      const Graph first = graph.part(0, layers[cut].first);
      const Graph second = graph.part(layers[cut].first, static_cast<int>(graph.nodes().size()));
      EXPECT_EQ(first.forward_flops_per_sample() + second.forward_flops_per_sample(), graph.forward_flops_per_sample());
      EXPECT_EQ(first.state_size() + second.state_size(), graph.state_size());
      EXPECT_EQ(first.parameters().all().size() + second.parameters().all().size(), graph.parameters().all().size());
      EXPECT_EQ(first.nodes().back().output.size(), second.nodes().front().output.size());
      EXPECT_EQ(first.sequence(), graph.sequence());
      EXPECT_EQ(second.classes(), graph.classes());
      const ParameterTable later = second.parameters();
      for (const Parameter& p : later.all()) {
        EXPECT_EQ(p.shape, graph.parameters().find(p.name).shape);
        EXPECT_THROW(first.parameters().find(p.name), Error);
      }
    }
  }
  const Graph resnet = model("resnet");
  EXPECT_THROW(resnet.part(0, layers_of(resnet)[2].first + 1), Error);  // inside a residual block
}

// Returns the seconds of the slowest stage with the best cuts. Tries all ways to cut the layers from `first` on.
double best_by_trying(const std::vector<ModelLayer>& layers, std::size_t first, std::int64_t stages) {
  if (stages == 1) return stage_seconds(layers, first, layers.size());
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t cut = first + 1; cut + static_cast<std::size_t>(stages) - 1 <= layers.size(); ++cut)
    best = std::min(best, std::max(stage_seconds(layers, first, cut), best_by_trying(layers, cut, stages - 1)));
  return best;
}

TEST(Cuts, TheSlowestStageIsAsFastAsItCanBe) {
  for (const std::string kind : {"char_lstm", "cnn", "alexnet", "resnet"}) {
    const std::vector<ModelLayer> layers = layers_of(model(kind));
    for (std::int64_t stages = 2; stages <= 4; ++stages) {
      const std::vector<std::size_t> cuts = fastest_cuts(layers, stages);
      ASSERT_EQ(std::ssize(cuts), stages - 1);
      double slowest = 0;
      for (std::size_t s = 0; s <= cuts.size(); ++s)
        slowest = std::max(slowest,
                           stage_seconds(layers, s == 0 ? 0 : cuts[s - 1], s == cuts.size() ? layers.size() : cuts[s]));
      EXPECT_DOUBLE_EQ(slowest, best_by_trying(layers, 0, stages)) << kind << " " << stages;
    }
  }
}

TEST(Cuts, NamesSayWhereAStageBegins) {
  const Graph graph = model("resnet");
  const std::vector<ModelLayer> layers = layers_of(graph);
  EXPECT_EQ(named_cuts(layers, graph, {"layer2.0", "fc"}, 3), (std::vector<std::size_t>{3, 9}));
  EXPECT_EQ(named_cuts(layers, graph, {"layer3"}, 2), (std::vector<std::size_t>{5}));
  EXPECT_EQ(named_cuts(layers, graph, {"layer1.1.conv1"}, 2), (std::vector<std::size_t>{2}));
  EXPECT_THROW(named_cuts(layers, graph, {"layer5"}, 2), Error);
  EXPECT_THROW(named_cuts(layers, graph, {"conv1"}, 2), Error);
  EXPECT_THROW(named_cuts(layers, graph, {"layer3", "layer2"}, 3), Error);
  EXPECT_THROW(named_cuts(layers, graph, {"layer3"}, 3), Error);
  EXPECT_THROW(fastest_cuts(layers, 11), Error);
}

// Runs all stages, each pass as soon as its inputs exist. Returns the share of the time in which a stage waits, if
// forward and backward passes take one unit of time each.
double simulated_bubble(const std::string& schedule, std::int64_t stages, std::int64_t m) {
  const auto k = static_cast<std::size_t>(stages);
  std::vector<std::vector<StageEvent>> events;
  for (std::int64_t s = 0; s < stages; ++s) events.push_back(stage_events(schedule, s, stages, m));
  std::vector<std::size_t> next(k, 0);
  std::vector<std::int64_t> free(k, 0);
  const auto count = static_cast<std::size_t>(m);
  std::vector forward(k, std::vector<std::int64_t>(count, -1)), backward = forward;
  std::int64_t left = 2 * m * stages;
  while (left > 0) {
    const std::int64_t before = left;
    for (std::size_t s = 0; s < k; ++s) {
      if (next[s] == events[s].size()) continue;
      const StageEvent& event = events[s][next[s]];
      const auto i = static_cast<std::size_t>(event.micro_batch);
      std::int64_t ready = 0;
      if (event.backward)
        ready = s + 1 < k ? backward[s + 1][i] : forward[s][i];
      else if (s > 0)
        ready = forward[s - 1][i];
      if (ready < 0) continue;
      free[s] = std::max(free[s], ready) + 1;
      (event.backward ? backward : forward)[s][i] = free[s];
      ++next[s];
      --left;
    }
    if (left == before) return -1;  // every stage waits for another one
  }
  const std::int64_t end = *std::ranges::max_element(free);
  return 1 - static_cast<double>(2 * m) / static_cast<double>(end);
}

TEST(StageEvents, BothSchedulesEndWithTheBubbleOfTheFormulaAndHoldNoMoreThanTheirSlots) {
  for (const std::string schedule : {"gpipe", "1f1b"})
    for (std::int64_t stages = 1; stages <= 5; ++stages)
      for (std::int64_t m = 1; m <= 9; ++m) {
        EXPECT_NEAR(simulated_bubble(schedule, stages, m), bubble_share(stages, m), 1e-12)
            << schedule << " " << stages << " " << m;
        for (std::int64_t s = 0; s < stages; ++s) {
          std::int64_t held = 0, most = 0, forward = 0, backward = 0;
          for (const StageEvent& event : stage_events(schedule, s, stages, m)) {
            EXPECT_EQ(event.micro_batch, event.backward ? backward++ : forward++);
            held += event.backward ? -1 : 1;
            most = std::max(most, held);
          }
          EXPECT_EQ(forward, m);
          EXPECT_EQ(backward, m);
          EXPECT_EQ(most, stage_slots(schedule, s, stages, m));
        }
      }
}

TEST(Arena, WhatWaitsForTheBackwardPassExistsOncePerSlot) {
  ArenaPlan arena;
  const Buffer weights = arena.add("weights", 64), kept = arena.add("kept", 128, 1, 5),
               also = arena.add("also", 64, 2, 4);
  const Buffer early = arena.add("early", 256, 0, 1), late = arena.add("late", 192, 4, 5);
  arena.place(3, 3);
  EXPECT_EQ(arena.bytes(), 3 * 192 + 64 + 256);  // early and late share a place
  EXPECT_EQ(arena.offset(kept, 2) - arena.offset(kept, 1), 192);
  EXPECT_EQ(arena.offset(also, 1) - arena.offset(also, 0), 192);
  for (const Buffer& shared : {weights, early, late}) {
    EXPECT_EQ(arena.offset(shared, 0), arena.offset(shared, 2));
    EXPECT_GE(arena.offset(shared), 3 * 192);
  }
}

}  // namespace
}  // namespace ringtrain
