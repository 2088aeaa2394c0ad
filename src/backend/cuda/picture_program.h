// A graph of a picture model compiled for a device.
#pragma once

#include <memory>

#include "backend/cuda/backend.h"

namespace ringtrain::cuda {

// `group`: images that batch norm normalises together; throws Error unless it divides micro_batch.
std::unique_ptr<Program> make_picture_program(Device& device, const BackendOptions& options, const Graph& graph,
                                              std::int64_t micro_batch, std::int64_t group, Precision precision,
                                              PassMode mode);

// The most images, a power of two, whose maps fit beside the flat vectors in so many bytes.
std::int64_t preferred_picture_batch(const Graph& graph, Precision precision, std::int64_t free_bytes);

}  // namespace ringtrain::cuda
