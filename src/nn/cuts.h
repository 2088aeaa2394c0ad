// Cuts a model into consecutive parts for the stages of a pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/graph.h"

namespace ringtrain {

// The nodes between two places where a model can be cut, for example a residual block, or a layer with the nodes after
// it.
struct ModelLayer {
  std::string name;               // such as "layer2.0", "features.3", "lstm.l1"
  int first = 0, last = 0;        // nodes [first, last)
  std::int64_t flops = 0;         // operations of a forward pass, per sample
  std::int64_t values = 0;        // values written by its nodes, per sample
  std::int64_t input_values = 0;  // values that cross a cut before this layer, per sample; 0: first layer
};

// Returns the layers in order of execution. There is no cut before the first layer.
std::vector<ModelLayer> layers_of(const Graph& graph);

// The speeds from which a stage's time is predicted.
struct StageRates {
  double flops = 5e10;      // per second and rank
  double bytes = 1e10;      // bytes read or written, per second
  double wire_bytes = 2e9;  // per second between two ranks
  double value_bytes = 4;
};

// Returns the seconds per sample of layers [first, last) as one stage. They include the forward pass, twice its time
// for the backward pass, and the values that cross both ends of the stage in both directions.
double stage_seconds(const std::vector<ModelLayer>& layers, std::size_t first, std::size_t last,
                     const StageRates& rates = {});

// Returns the first layer of each stage after the first stage, chosen so that the slowest stage is as fast as possible.
// The method is dynamic programming over (stages, layers) in O(stages x layers^3) operations. Throws Error if there are
// fewer layers than stages.
std::vector<std::size_t> fastest_cuts(const std::vector<ModelLayer>& layers, std::int64_t stages,
                                      const StageRates& rates = {});

// Returns the cuts that `names` give. A name is that of a layer, of a group of layers ("layer3"), or of a tensor in a
// layer. Throws Error if a name cannot begin a stage, if the number of names is wrong, or if the names are not in
// ascending order.
std::vector<std::size_t> named_cuts(const std::vector<ModelLayer>& layers, const Graph& graph,
                                    const std::vector<std::string>& names, std::int64_t stages);

}  // namespace ringtrain
