// Maps the tensors of LSTM layers from the flat vector, in PyTorch's order, to the weight space of a recurrent plan of
// cuDNN.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/dnn/rnn.h"
#include "backend/cuda/kernels/kernels.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// Returns a place for every tensor of `plan`, which computes `layers` in this order. `own_base` is the first element of
// the weight space, counted from the base address of the copies. Throws Error when cuDNN's tensors do not match the
// layers.
std::vector<TensorPlace> lstm_places(const RnnPlan& plan, std::span<const Lstm> layers, const ParameterTable& table,
                                     std::int64_t own_base);

}  // namespace ringtrain::cuda
