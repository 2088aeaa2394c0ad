// LstmModel is a model that lstm/program.h compiles: a stack of LSTM layers on one-hot symbols, a dense layer at every
// position and softmax cross-entropy, or a part of such a model.
#pragma once

#include <span>
#include <vector>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/kernels/kernels.h"
#include "nn/graph.h"

namespace ringtrain::cuda {

struct LstmModel {
  bool is_first = true, is_last = true;  // whether it begins with the symbols; whether it ends with the loss
  std::int64_t vocabulary = 0, hidden = 0;
  std::vector<Lstm> layers;
  std::vector<Dropout> dropouts;  // after each layer; probability 0 means none
  std::vector<bool> recomputed;   // for each layer: whether the backward pass recomputes it
  Dense dense;
  CrossEntropy loss;
};

// Reads the model from a graph. Throws Error when the graph is no such model.
LstmModel lstm_model(const Graph& graph);

// Maps the tensors of LSTM layers from the flat vector, in PyTorch's order, to the weight space of a recurrent plan of
// cuDNN. Returns a place for every tensor of `plan`, which computes `layers` in this order. `own_base` is the first
// element of the weight space, counted from the base address of the copies. Throws Error when cuDNN's tensors do not
// match the layers.
std::vector<TensorPlace> lstm_places(const RnnPlan& plan, std::span<const Lstm> layers, const ParameterTable& table,
                                     std::int64_t own_base);

}  // namespace ringtrain::cuda
