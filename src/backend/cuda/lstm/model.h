// LstmModel is a model that lstm/program.h compiles: a stack of LSTM layers on one-hot symbols, a dense layer at every
// position and softmax cross-entropy, or a part of such a model.
#pragma once

#include <vector>

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

}  // namespace ringtrain::cuda
