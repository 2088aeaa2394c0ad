// A graph of an LSTM model compiled for a device.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/program/options.h"

namespace ringtrain::cuda {

std::unique_ptr<Program> make_lstm_program(Device& device, const BackendOptions& options, const Graph& graph,
                                           std::int64_t micro_batch, Precision precision, PassMode mode, int slots);

}  // namespace ringtrain::cuda
