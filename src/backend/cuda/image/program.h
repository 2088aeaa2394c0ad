// This folder compiles the graph of an image model to a program for a GPU. The work has three phases. First,
// program.cpp turns nodes into layers, and layers record who makes and who reads each Value (layer.h). Second, the
// program chooses for each layer what is fused (layer.h, fusions.cpp), by timing on a real GPU. Third, each layer adds
// its commands to the schedule (emission.h). Begin with program.cpp, then read layer.h and one simple layer in
// layers.cpp.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/image/layer.h"
#include "backend/cuda/image/layers.h"
#include "backend/cuda/image/norm.h"
#include "backend/cuda/program/base.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// Turns the graph of an image model into layers. Neighbouring nodes that can run as one become one layer.
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

// `group` is the number of images that batch norm normalises together. When it exceeds micro_batch, group / micro_batch
// ranks share a group. Throws Error unless one of the two numbers divides the other. `slots` is the number of
// micro-batches in flight.
std::unique_ptr<Program> make_image_program(Device& device, const BackendOptions& options, const Graph& graph,
                                            std::int64_t micro_batch, std::int64_t group, Precision precision,
                                            PassMode mode, int slots = 1);

}  // namespace ringtrain::cuda
