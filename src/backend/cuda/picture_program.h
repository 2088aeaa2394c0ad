// A graph of a picture model compiled for a device.
#pragma once

#include <memory>

#include "backend/cuda/backend.h"

namespace ringtrain::cuda {

// `group`: images that batch norm normalises together; throws Error unless it divides micro_batch.
std::unique_ptr<Program> make_picture_program(Device& device, const BackendOptions& options, const Graph& graph,
                                              std::int64_t micro_batch, std::int64_t group, Precision precision,
                                              PassMode mode);

}  // namespace ringtrain::cuda
