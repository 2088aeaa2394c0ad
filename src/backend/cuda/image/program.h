// This folder compiles the graph of an image model to a program for a GPU. The work has three phases. First,
// program.cpp turns nodes into layers, and layers record who makes and who reads each Value (layer.h). Second, the
// program chooses for each layer what is fused (layer.h, convolution.cpp), by timing on a real GPU. Third, each layer
// adds its commands to the schedule (emission.h). Begin with program.cpp, then read layer.h and one simple layer in
// layers.cpp.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// `group` is the number of images that batch norm normalises together. When it exceeds micro_batch, group / micro_batch
// ranks share a group. Throws Error unless one of the two numbers divides the other. `slots` is the number of
// micro-batches in flight.
std::unique_ptr<Program> make_image_program(Device& device, const BackendOptions& options, const Graph& graph,
                                            std::int64_t micro_batch, std::int64_t group, Precision precision,
                                            PassMode mode, int slots = 1);

}  // namespace ringtrain::cuda
