// A graph of an image model compiled for a device.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/program/options.h"

namespace ringtrain::cuda {

// `group`: images that batch norm normalises together; throws Error unless it divides micro_batch. `slots`: micro-batches
// in flight.
std::unique_ptr<Program> make_image_program(Device& device, const BackendOptions& options, const Graph& graph,
                                            std::int64_t micro_batch, std::int64_t group, Precision precision,
                                            PassMode mode, int slots = 1);

}  // namespace ringtrain::cuda
