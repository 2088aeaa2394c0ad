// Reads the model from the graph, and finds its weights in cuDNN's weight space: lstm_model() and lstm_places() of
// program.h.
#include <set>
#include <tuple>

#include "backend/cuda/lstm/program.h"
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

namespace {

constexpr int gates = 4;

const Parameter& parameter(const ParameterTable& table, const Lstm& layer, const RnnWeight& weight) {
  if (weight.bias) return table.find(weight.recurrent ? layer.bias_hh : layer.bias_ih);
  return table.find(weight.recurrent ? layer.weight_hh : layer.weight_ih);
}

}  // namespace

std::vector<TensorPlace> lstm_places(const RnnPlan& plan, std::span<const Lstm> layers, const ParameterTable& table) {
  const RnnOperation& operation = plan.operation();
  std::vector<TensorPlace> places;
  std::set<std::tuple<std::int64_t, bool, bool, int>> seen;
  for (const RnnWeight& weight : plan.weights()) {
    if (weight.layer < 0 || weight.layer >= std::ssize(layers) || weight.gate < 0 || weight.gate >= gates ||
        !seen.insert({weight.layer, weight.recurrent, weight.bias, weight.gate}).second)
      throw Error(cat(operation.key(), ": cuDNN names a tensor of layer ", weight.layer, ", gate ", weight.gate,
                      " that no LSTM layer has, or names it twice"));
    const Lstm& layer = layers[static_cast<std::size_t>(weight.layer)];
    const Parameter& p = parameter(table, layer, weight);
    TensorPlace place;
    if (weight.bias) {
      place.outer = 1;
      place.inner = place.padded = static_cast<int>(layer.hidden);
    } else {
      place.outer = layer.hidden;
      place.inner = static_cast<int>(weight.recurrent ? layer.hidden : layer.input);
      // A one-hot input is padded with columns that are always zero.
      place.padded = static_cast<int>(weight.recurrent || weight.layer > 0 ? layer.hidden : operation.input);
    }
    if (weight.count != place.outer * place.padded || place.padded < place.inner)
      throw Error(cat(operation.key(), ": ", p.name, ", gate ", weight.gate, " has ", weight.count,
                      " elements in cuDNN's weight space; expected ", place.outer, " x ", place.padded));
    place.flat_offset = p.offset + weight.gate * place.outer * place.inner;
    place.own_offset = weight.offset;
    places.push_back(place);
  }
  if (std::ssize(places) != 4 * gates * std::ssize(layers))
    throw Error(cat(operation.key(), ": cuDNN's weight space has ", places.size(), " tensors; expected ",
                    4 * gates * layers.size(), " (weights and biases of four gates, of input and recurrence)"));
  return places;
}

}  // namespace ringtrain::cuda
