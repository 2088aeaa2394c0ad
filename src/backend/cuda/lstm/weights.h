// Where the tensors of LSTM layers lie: torch's in the flat vector, cuDNN's in the weight space of a recurrent plan.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/dnn/rnn.h"
#include "backend/cuda/kernels/kernels.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

// A place for every tensor of `plan`, which computes `layers` in this order. `own_base`: the weight space's first
// element, counted from the address that the copies are given. Throws Error where cuDNN's tensors are not the layers'.
std::vector<TensorPlace> lstm_places(const RnnPlan& plan, std::span<const Lstm> layers, const ParameterTable& table,
                                     std::int64_t own_base);

}  // namespace ringtrain::cuda
