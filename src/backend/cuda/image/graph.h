// A graph of an image model turned into layers: neighbours that can run as one are joined here.
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
  std::vector<int> blocks;                          // of the layers, where they are recomputed; else -1
  std::vector<std::unique_ptr<Value>> values;
  std::vector<std::unique_ptr<NormStatistics>> norms;
  const LossLayer* loss = nullptr;  // null: the model goes on in another part
};

// Norm -> ReLU and norm -> add (of a norm) -> ReLU become one layer each, and bias -> ReLU; every other order of these
// nodes is compiled as it stands. A shortcut's convolution runs behind the branch, so that in the backward pass the
// branch's first convolution is the last to send its gradient and can add the shortcut's. Throws Error for what cannot
// be compiled.
ImageLayers join_layers(const Graph& graph, const ImageContext& context);

}  // namespace ringtrain::cuda
