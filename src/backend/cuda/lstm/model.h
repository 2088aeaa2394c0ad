// The graphs that lstm/program compiles: a stack of LSTM layers on one-hot symbols, a dense layer at every position,
// softmax cross-entropy; or a part of such a model.
#pragma once

#include <vector>

#include "nn/graph.h"

namespace ringtrain::cuda {

struct LstmModel {
  bool is_first = true, is_last = true;  // it begins with the symbols; it ends in the loss
  std::int64_t vocabulary = 0, hidden = 0;
  std::vector<Lstm> layers;
  std::vector<Dropout> dropouts;  // behind each layer; probability 0: none
  std::vector<bool> recomputed;   // of each layer: in the backward pass
  Dense dense;
  CrossEntropy loss;
};

// Throws Error where the graph is none of these.
LstmModel lstm_model(const Graph& graph);

}  // namespace ringtrain::cuda
