#include "backend/cuda/lstm/model.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {

LstmModel lstm_model(const Graph& graph) {
  LstmModel model;
  bool fits = true;
  for (const Node& node : graph.nodes()) {
    if (const auto* input = std::get_if<TokenInput>(&node.operation)) {
      model.vocabulary = input->vocabulary;
    } else if (std::holds_alternative<PartInput>(node.operation)) {
      model.is_first = false;
      model.hidden = node.output.channels;
    } else if (std::holds_alternative<PartOutput>(node.operation)) {
      model.is_last = false;
    } else if (const auto* layer = std::get_if<Lstm>(&node.operation)) {
      model.layers.push_back(*layer);
      model.recomputed.push_back(node.recomputed);
      model.dropouts.emplace_back();
    } else if (const auto* dropout = std::get_if<Dropout>(&node.operation)) {
      if (model.layers.empty() || model.dropouts.back().probability > 0)
        fits = false;
      else
        model.dropouts.back() = *dropout;
    } else if (const auto* dense = std::get_if<Dense>(&node.operation)) {
      fits = fits && model.dense.output == 0;
      model.dense = *dense;
    } else if (const auto* loss = std::get_if<CrossEntropy>(&node.operation)) {
      model.loss = *loss;
    } else {
      fits = false;
    }
  }
  const bool has_end = model.dense.output > 0 && model.loss.classes > 0;
  if (!fits || (model.is_first && model.layers.empty()) || has_end != model.is_last)
    throw Error("the GPU backend compiles LSTM layers on symbols, followed by dropout and one dense layer");
  if (model.is_first) model.hidden = model.layers.front().hidden;
  for (const Lstm& layer : model.layers)
    if (layer.hidden != model.hidden)
      throw Error(
          cat("LSTM layers of ", model.hidden, " and of ", layer.hidden, " units: the GPU backend wants one size"));
  return model;
}

}  // namespace ringtrain::cuda
