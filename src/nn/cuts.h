// Where a model is cut into consecutive parts of a pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/graph.h"

namespace ringtrain {

// What lies between two places where a model can be cut: a residual block, a layer with what follows it.
struct ModelLayer {
  std::string name;               // "layer2.0", "features.3", "lstm.l1"
  int first = 0, last = 0;        // nodes [first, last)
  std::int64_t flops = 0;         // forward, per sample
  std::int64_t values = 0;        // written by its nodes, per sample
  std::int64_t input_values = 0;  // that cross a cut before it, per sample; 0: the model begins here
};

// In order of execution; the first one cannot be cut off before.
std::vector<ModelLayer> layers_of(const Graph& graph);

// What a stage's time is predicted from.
struct StageRates {
  double flops = 5e10;      // per second, of a rank
  double bytes = 1e10;      // of values that are read and written, per second
  double wire_bytes = 2e9;  // per second between two ranks
  double value_bytes = 4;
};

// Seconds per sample of layers [first, last) as one stage: forward pass, two such products in the backward pass, and
// what crosses its ends both ways.
double stage_seconds(const std::vector<ModelLayer>& layers, std::size_t first, std::size_t last,
                     const StageRates& rates = {});

// The first layer of each stage after the first, so that the slowest stage is as fast as it can be: dynamic programming
// over (stages, layers), O(stages x layers^2). Throws Error where there are fewer layers than stages.
std::vector<std::size_t> fastest_cuts(const std::vector<ModelLayer>& layers, std::int64_t stages,
                                      const StageRates& rates = {});

// The same from names: of a layer, of a group of layers ("layer3"), or of a tensor in it. Throws Error for a name that
// begins no stage, for a wrong number of names, and where they do not ascend.
std::vector<std::size_t> named_cuts(const std::vector<ModelLayer>& layers, const Graph& graph,
                                    const std::vector<std::string>& names, std::int64_t stages);

}  // namespace ringtrain
