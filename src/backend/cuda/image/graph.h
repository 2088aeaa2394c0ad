// Turns the graph of an image model into layers. Neighbouring nodes that can run as one become one layer.
#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/image/layer.h"
#include "backend/cuda/image/layers.h"
#include "backend/cuda/image/norm.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

struct ImageLayers {
  std::vector<std::unique_ptr<ImageLayer>> layers;  // in order of execution
  std::vector<int> blocks;                          // the block of each recomputed layer, else -1
  std::vector<std::unique_ptr<Value>> values;
  std::vector<std::unique_ptr<NormStatistics>> norms;
  const LossLayer* loss = nullptr;  // null: another part of the model contains the loss
};

// These sequences of nodes become one layer each: norm -> ReLU, norm -> add, norm -> add -> ReLU (the other operand may
// be a norm too), and bias -> ReLU. All other nodes are compiled one by one. A shortcut's convolution runs after the
// main branch. In the backward pass the branch's first convolution is then the last to send its gradient, and can add
// the shortcut's gradient. Throws Error when the graph cannot be compiled.
ImageLayers join_layers(const Graph& graph, const ImageContext& context);

}  // namespace ringtrain::cuda
