// This folder compiles the graph of an LSTM language model to a program for a GPU. LstmModel (model.h) is the model as
// read from the graph. choice.h chooses the calls of cuDNN that compute the LSTM layers. model.h maps PyTorch's
// weights to cuDNN's weight space. program.cpp adds the commands to the schedule; begin reading there.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

// `slots` is the number of micro-batches in flight. Throws Error when the graph is not such a model.
std::unique_ptr<Program> make_lstm_program(Device& device, const BackendOptions& options, const Graph& graph,
                                           std::int64_t micro_batch, Precision precision, PassMode mode, int slots);

}  // namespace ringtrain::cuda
