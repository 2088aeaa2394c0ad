#include "nn/cuts.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace ringtrain {
namespace {

// Returns the leading words that both names share. "layer2.0.conv1.weight" and "layer2.0.bn1.bias" share "layer2.0".
// Returns "" if the names share no whole word.
std::string common_words(const std::string& a, const std::string& b) {
  std::size_t end = 0;
  for (std::size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    const bool ends = (i == a.size() || a[i] == '.') && (i == b.size() || b[i] == '.');
    if (ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

// Returns the name of the module that owns a tensor: "fc" of "fc.weight".
std::string owner(const Parameter& p) {
  return p.name.substr(0, p.name.rfind('.'));
}

// Returns the name that all tensors of the layer share, if no other layer shares it. Otherwise returns the name of the
// module that owns the layer's first tensor. An LSTM layer is named by its number: "lstm.l1".
std::string name_of(const Graph& graph, const ModelLayer& layer) {
  int begin = layer.first;  // inputs (symbols, pixels) have no name
  while (graph.parameters_of(begin).empty()) ++begin;
  if (const auto* lstm = std::get_if<Lstm>(&graph.nodes()[static_cast<std::size_t>(begin)].operation))
    return cat(lstm->weight_ih.substr(0, lstm->weight_ih.find('.')), ".l", lstm->layer);
  const std::string own = owner(graph.parameters_of(begin).front());
  std::string common = own;
  for (int i = begin; i < layer.last; ++i)
    for (const Parameter& p : graph.parameters_of(i)) common = common_words(common, p.name);
  if (common.empty()) return own;
  for (int i = 0; i < static_cast<int>(graph.nodes().size()); ++i)
    for (const Parameter& p : graph.parameters_of(i))
      if ((i < layer.first || i >= layer.last) && p.name.starts_with(common + ".")) return own;
  return common;
}

std::string list_of(const std::vector<ModelLayer>& layers) {
  std::string text;
  for (std::size_t i = 1; i < layers.size(); ++i) text += (i > 1 ? ", " : "") + layers[i].name;
  return text;
}

void expect_layers(const std::vector<ModelLayer>& layers, std::int64_t stages) {
  if (std::ssize(layers) < stages)
    throw Error(cat("parallel.stages ", stages, " is more than the model's ", layers.size(), " layers"),
                cat("use ", layers.size(), " stages at most"));
}

}  // namespace

std::vector<ModelLayer> layers_of(const Graph& graph) {
  const int size = static_cast<int>(graph.nodes().size());
  std::vector<ModelLayer> layers;
  for (int i = 0; i < size; ++i) {
    const Node& node = graph.nodes()[static_cast<std::size_t>(i)];
    const bool cut = graph.can_be_cut(i);
    if (i == 0 || cut) {
      if (!layers.empty()) layers.back().last = i;
      layers.push_back({.name = "", .first = i, .last = size});
      if (cut) {
        const int from = node.inputs.front();
        layers.back().input_values = graph.nodes()[static_cast<std::size_t>(from)].output.size() * graph.sequence();
      }
    }
    layers.back().flops += node.flops;
    layers.back().values += node.output.size() * graph.sequence();
  }
  for (ModelLayer& layer : layers) layer.name = name_of(graph, layer);
  return layers;
}

double stage_seconds(const std::vector<ModelLayer>& layers, std::size_t first, std::size_t last,
                     const StageRates& rates) {
  double seconds = 0;
  for (std::size_t i = first; i < last; ++i)
    seconds += 3 * (static_cast<double>(layers[i].flops) / rates.flops +
                    static_cast<double>(layers[i].values) * rates.value_bytes / rates.bytes);
  std::int64_t crossing = layers[first].input_values;
  if (last < layers.size()) crossing += layers[last].input_values;
  return seconds + 2 * static_cast<double>(crossing) * rates.value_bytes / rates.wire_bytes;
}

std::vector<std::size_t> fastest_cuts(const std::vector<ModelLayer>& layers, std::int64_t stages,
                                      const StageRates& rates) {
  expect_layers(layers, stages);
  const std::size_t n = layers.size(), k = static_cast<std::size_t>(stages);
  // slowest[s][j] is the time of the slowest stage in the best division of the first j layers into s + 1 stages.
  // begin[s][j] is where the last of these stages begins.
  std::vector slowest(k, std::vector(n + 1, std::numeric_limits<double>::infinity()));
  std::vector begin(k, std::vector<std::size_t>(n + 1, 0));
  for (std::size_t j = 1; j <= n; ++j) slowest[0][j] = stage_seconds(layers, 0, j, rates);
  for (std::size_t s = 1; s < k; ++s)
    for (std::size_t j = s + 1; j <= n; ++j)
      for (std::size_t i = s; i < j; ++i) {
        const double time = std::max(slowest[s - 1][i], stage_seconds(layers, i, j, rates));
        if (time >= slowest[s][j]) continue;
        slowest[s][j] = time;
        begin[s][j] = i;
      }
  std::vector<std::size_t> cuts(k - 1);
  for (std::size_t s = k - 1, j = n; s > 0; --s) j = cuts[s - 1] = begin[s][j];
  return cuts;
}

std::vector<std::size_t> named_cuts(const std::vector<ModelLayer>& layers, const Graph& graph,
                                    const std::vector<std::string>& names, std::int64_t stages) {
  expect_layers(layers, stages);
  if (std::ssize(names) != stages - 1)
    throw Error(
        cat("parallel.cuts names ", names.size(), " layers, but parallel.stages ", stages, " need ", stages - 1),
        cat("name the first layer of each stage after the first, of ", list_of(layers)));
  const auto begins = [&](const ModelLayer& layer, const std::string& name) {
    if (layer.name == name || layer.name.starts_with(name + ".")) return true;
    for (int i = layer.first; i < layer.last; ++i)
      for (const Parameter& p : graph.parameters_of(i))
        if (p.name == name || owner(p) == name) return true;
    return false;
  };
  std::vector<std::size_t> cuts;
  for (const std::string& name : names) {
    const auto found = std::ranges::find_if(layers, [&](const ModelLayer& layer) { return begins(layer, name); });
    const auto at = static_cast<std::size_t>(found - layers.begin());
    if (found == layers.end() || at == 0)
      throw Error(
          cat("parallel.cuts: ", name, at == 0 ? " is the model's first layer" : " is not a layer of the model"),
          cat("layers that a stage can begin with: ", list_of(layers)));
    if (!cuts.empty() && at <= cuts.back())
      throw Error(cat("parallel.cuts: ", name, " does not come after the cut before it"),
                  cat("give them in the model's order: ", list_of(layers)));
    cuts.push_back(at);
  }
  return cuts;
}

}  // namespace ringtrain
