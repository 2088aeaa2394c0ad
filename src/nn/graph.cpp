#include "nn/graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>

#include "base/error.h"

namespace ringtrain {

int Graph::append(Operation operation, std::vector<int> inputs, std::vector<Parameter> parameters, FeatureShape output,
                  std::int64_t flops) {
  if (const auto* lstm = std::get_if<Lstm>(&operation)) state_size_ += 2 * lstm->hidden;
  if (const auto* norm = std::get_if<Norm>(&operation); norm != nullptr && !norm->by_sample()) has_batch_norm_ = true;
  nodes_.push_back({std::move(operation), std::move(inputs), output, block_, flops, false, std::move(parameters)});
  flops_ += flops;
  return static_cast<int>(nodes_.size()) - 1;
}

bool Graph::is_input(int node) const {
  const Operation& operation = nodes_[static_cast<std::size_t>(node)].operation;
  return std::holds_alternative<TokenInput>(operation) || std::holds_alternative<ImageInput>(operation);
}

int Graph::tokens(std::int64_t length, std::int64_t vocabulary) {
  sequence_ = input_bytes_ = length;
  return append(TokenInput{length, vocabulary}, {}, {}, {vocabulary});
}

int Graph::lstm(int input, std::int64_t hidden, const std::string& name, std::int64_t layer, double forget_bias) {
  const std::int64_t width = shape(input).channels;
  const bool one_hot = is_input(input);
  const std::string l = "_l" + std::to_string(layer);
  const Lstm op{layer,
                width,
                hidden,
                name + ".weight_ih" + l,
                name + ".weight_hh" + l,
                name + ".bias_ih" + l,
                name + ".bias_hh" + l};
  const double scale = 1 / std::sqrt(static_cast<double>(hidden));
  const std::int64_t flops = sequence_ * 2 * 4 * hidden * (hidden + (one_hot ? 0 : width));
  const auto parameter = [&](const std::string& n, std::vector<std::int64_t> shape, ParameterKind kind) {
    return Parameter{n, std::move(shape), kind, InitialValues::uniform, scale};
  };
  Parameter weight_ih = parameter(op.weight_ih, {4 * hidden, width}, ParameterKind::weight);
  weight_ih.is_outer = is_input(input);
  Parameter bias_ih = parameter(op.bias_ih, {4 * hidden}, ParameterKind::bias);
  if (forget_bias != 0) bias_ih.part = {hidden, 2 * hidden, forget_bias};
  return append(op, {input},
                {std::move(weight_ih), parameter(op.weight_hh, {4 * hidden, hidden}, ParameterKind::weight),
                 std::move(bias_ih), parameter(op.bias_hh, {4 * hidden}, ParameterKind::bias)},
                {hidden}, flops);
}

int Graph::dropout(int input, double probability, std::int64_t layer) {
  if (probability == 0) return input;
  return append(Dropout{layer, probability}, {input}, {}, shape(input));
}

int Graph::dense(int input, std::int64_t output, const std::string& name, double deviation) {
  const std::int64_t width = shape(input).size();
  const InitialValues kind = deviation > 0 ? InitialValues::normal : InitialValues::uniform;
  const double scale = deviation > 0 ? deviation : 1 / std::sqrt(static_cast<double>(width));
  return append(Dense{width, output, name + ".weight", name + ".bias"}, {input},
                {Parameter{name + ".weight", {output, width}, ParameterKind::weight, kind, scale},
                 Parameter{name + ".bias",
                           {output},
                           ParameterKind::bias,
                           deviation > 0 ? InitialValues::constant : InitialValues::uniform,
                           deviation > 0 ? 0 : scale}},
                {output}, sequence_ * 2 * width * output);
}

int Graph::dense_on_map(int map, std::int64_t output, const std::string& name, bool bias) {
  const int node = convolution(map, output, shape(map).height, 1, 0, name, bias);
  for (Parameter& p : nodes_[static_cast<std::size_t>(node)].parameters) {
    p.initial = InitialValues::uniform;
    p.scale = 1 / std::sqrt(static_cast<double>(shape(map).size()));
    if (p.kind == ParameterKind::weight && shape(map).height == 1) p.shape = {output, shape(map).channels};
  }
  return node;
}

int Graph::image(std::int64_t height, std::int64_t width, std::vector<double> mean, std::vector<double> std) {
  const auto channels = static_cast<std::int64_t>(mean.size());
  sequence_ = 1;
  has_images_ = true;
  input_bytes_ = height * width * channels;
  return append(ImageInput{height, width, channels, std::move(mean), std::move(std)}, {}, {},
                {channels, height, width});
}

int Graph::convolution(int input, std::int64_t output, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       const std::string& name, bool bias) {
  const FeatureShape& in = shape(input);
  const auto places = [&](std::int64_t size) { return (size + 2 * padding - kernel) / stride + 1; };
  const FeatureShape out{output, places(in.height), places(in.width)};
  if (out.height < 1 || out.width < 1 || in.height + 2 * padding < kernel || in.width + 2 * padding < kernel)
    throw Error(cat(name, ": a ", in.height, " x ", in.width, " image is too small for a ", kernel, " x ", kernel,
                    " convolution"),
                "use larger images (data.image_size); a resnet takes small ones with model.stem: small");
  const double deviation = std::sqrt(2 / static_cast<double>(output * kernel * kernel));
  std::vector<Parameter> parameters = {Parameter{name + ".weight",
                                                 {output, in.channels, kernel, kernel},
                                                 ParameterKind::weight,
                                                 InitialValues::normal,
                                                 deviation}};
  if (bias) parameters.push_back(Parameter{name + ".bias", {output}, ParameterKind::bias, InitialValues::constant, 0});
  for (Parameter& p : parameters) p.is_outer = is_input(input);
  return append(Convolution{in.channels, output, kernel, stride, padding, name + ".weight", bias ? name + ".bias" : ""},
                {input}, std::move(parameters), out, 2 * out.size() * in.channels * kernel * kernel);
}

int Graph::batch_norm(int input, const std::string& name, double initial_weight) {
  const FeatureShape out = shape(input);
  const auto parameter = [&](const char* leaf, ParameterKind kind, double value) {
    return Parameter{name + leaf, {out.channels}, kind, InitialValues::constant, value};
  };
  const Norm op{.channels = out.channels,
                .weight = name + ".weight",
                .bias = name + ".bias",
                .running_mean = name + ".running_mean",
                .running_var = name + ".running_var"};
  return append(
      op, {input},
      {parameter(".weight", ParameterKind::norm, initial_weight), parameter(".bias", ParameterKind::norm, 0),
       parameter(".running_mean", ParameterKind::statistic, 0), parameter(".running_var", ParameterKind::statistic, 1)},
      out);
}

int Graph::group_norm(int input, std::int64_t groups, const std::string& name, double initial_weight) {
  const FeatureShape out = shape(input);
  if (groups < 1 || out.channels % groups != 0)
    throw Error(cat("group norm ", name, " has ", out.channels, " channels, which ", groups, " groups do not divide"),
                "set model.norm_groups to a divisor of the channels of all layers");
  const auto parameter = [&](const char* leaf, double value) {
    return Parameter{name + leaf, {out.channels}, ParameterKind::norm, InitialValues::constant, value};
  };
  const Norm op{.channels = out.channels,
                .channel_groups = groups,
                .weight = name + ".weight",
                .bias = name + ".bias",
                .running_mean = "",
                .running_var = ""};
  return append(op, {input}, {parameter(".weight", initial_weight), parameter(".bias", 0)}, out);
}

int Graph::max_pool(int input, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  const FeatureShape& in = shape(input);
  const auto places = [&](std::int64_t size) { return (size + 2 * padding - kernel) / stride + 1; };
  const FeatureShape out{in.channels, places(in.height), places(in.width)};
  if (in.height + 2 * padding < kernel || in.width + 2 * padding < kernel)
    throw Error(
        cat("a ", in.height, " x ", in.width, " feature map is too small for ", kernel, " x ", kernel, " pooling"),
        "use larger images (data.image_size); a resnet takes small ones with model.stem: small");
  return append(MaxPool{kernel, stride, padding}, {input}, {}, out);
}

int Graph::cross_entropy(int input, double label_smoothing) {
  classes_ = shape(input).channels;
  for (Parameter& p : nodes_[static_cast<std::size_t>(input)].parameters) p.is_outer = true;
  return append(CrossEntropy{classes_, label_smoothing}, {input}, {}, {0});
}

void Graph::start_uniform(double range) {
  for (Node& node : nodes_)
    for (Parameter& p : node.parameters)
      if (p.kind == ParameterKind::weight || p.kind == ParameterKind::bias) {
        p.initial = InitialValues::uniform;
        p.scale = range;
      }
}

void Graph::start_truncated_normal() {
  for (Node& node : nodes_)
    for (Parameter& p : node.parameters) {
      if (p.kind == ParameterKind::bias) {
        p.initial = InitialValues::constant;
        p.scale = 0;
      }
      if (p.kind != ParameterKind::weight) continue;
      std::int64_t fan_in = 1;
      for (std::size_t d = 1; d < p.shape.size(); ++d) fan_in *= p.shape[d];
      const bool has_deviation = p.shape.size() == 2 && p.initial == InitialValues::normal;
      p.initial = InitialValues::truncated_normal;
      if (!has_deviation) p.scale = std::sqrt(2 / static_cast<double>(fan_in));
    }
}

ParameterTable Graph::parameters() const {
  ParameterTable table;
  for (const bool statistics : {false, true})
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node)
      for (const Parameter& p : node->parameters)
        if ((p.kind == ParameterKind::statistic) == statistics) table.append(p);
  return table;
}

std::int64_t Graph::training_flops_per_sample() const {
  std::int64_t flops = 3 * flops_;
  if (!nodes_.empty() && std::holds_alternative<ImageInput>(nodes_.front().operation)) {
    const auto first = std::ranges::find_if(nodes_, [](const Node& node) { return node.flops > 0; });
    if (first != nodes_.end()) flops -= first->flops;
  }
  return flops;
}

std::vector<Block> Graph::blocks() const {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.block.empty()) continue;
    if (blocks.empty() || blocks.back().name != node.block)
      blocks.push_back({.name = node.block, .first = i, .last = i, .recomputed = node.recomputed});
    blocks.back().last = i;
    blocks.back().flops += node.flops;
  }
  return blocks;
}

void Graph::recompute(const std::vector<std::string>& names) {
  const auto stands_for = [](const std::string& name, const std::string& block) {
    return !name.empty() && block.starts_with(name) && (block.size() == name.size() || block[name.size()] == '.');
  };
  const std::vector<Block> known = blocks();
  for (const std::string& name : names) {
    if (std::ranges::any_of(known, [&](const Block& b) { return stands_for(name, b.name); })) continue;
    throw Error(cat("memory.recompute names ", name, ", which is not a block of this model"),
                cat("the blocks are ", joined(known, ", ", &Block::name), "; or none, or auto"));
  }
  for (Node& node : nodes_)
    node.recomputed = std::ranges::any_of(names, [&](const std::string& n) { return stands_for(n, node.block); });
}

bool Graph::can_be_cut(int node) const {
  const auto at = static_cast<std::size_t>(node);
  if (node < 1 || at >= nodes_.size() || nodes_[at].inputs.empty()) return false;
  const Operation& operation = nodes_[at].operation;
  if (!std::holds_alternative<Convolution>(operation) && !std::holds_alternative<Lstm>(operation) &&
      !std::holds_alternative<Dense>(operation))
    return false;
  const int crossing = nodes_[at].inputs.front();
  if (is_input(crossing)) return false;
  for (std::size_t i = at; i < nodes_.size(); ++i)
    for (const int from : nodes_[i].inputs)
      if (from < node && from != crossing) return false;
  return true;
}

Graph Graph::part(int first, int last) const {
  const int size = static_cast<int>(nodes_.size());
  if (first < 0 || last > size || first >= last || (first > 0 && !can_be_cut(first)) ||
      (last < size && !can_be_cut(last)))
    throw Error(cat("the model cannot be cut before node ", first, ", or not after node ", last - 1));
  Graph g;
  g.sequence_ = sequence_;
  g.classes_ = classes_;
  g.input_bytes_ = input_bytes_;
  g.has_images_ = has_images_;
  const int before = first > 0 ? nodes_[static_cast<std::size_t>(first)].inputs.front() : -1;
  if (first > 0) g.append(PartInput{}, {}, {}, shape(before));
  const auto place = [&](int node) { return node == before ? 0 : node - first + (first > 0 ? 1 : 0); };
  for (int i = first; i < last; ++i) {
    Node node = nodes_[static_cast<std::size_t>(i)];
    for (int& from : node.inputs) from = place(from);
    g.append(node.operation, node.inputs, node.parameters, node.output, node.flops);
    g.nodes_.back().block = node.block;
    g.nodes_.back().recomputed = node.recomputed;
  }
  if (last < size) {
    const int out = nodes_[static_cast<std::size_t>(last)].inputs.front();
    if (out < first)
      throw Error(cat("the part of nodes ", first, " to ", last - 1, " does not compute node ", out,
                      ", whose value the next part needs"));
    g.append(PartOutput{}, {place(out)}, {}, shape(out));
  }
  return g;
}

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
  return joined(layers | std::views::drop(1), ", ", &ModelLayer::name);
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

double stage_seconds(const std::vector<ModelLayer>& layers, std::size_t first, std::size_t last) {
  constexpr double flops = 5e10, bytes = 1e10;  // per second and rank; bytes are read or written
  constexpr double wire_bytes = 2e9;            // per second between two ranks
  constexpr double value_bytes = 4;
  double seconds = 0;
  for (std::size_t i = first; i < last; ++i)
    seconds += 3 * (static_cast<double>(layers[i].flops) / flops +
                    static_cast<double>(layers[i].values) * value_bytes / bytes);
  std::int64_t crossing = layers[first].input_values;
  if (last < layers.size()) crossing += layers[last].input_values;
  return seconds + 2 * static_cast<double>(crossing) * value_bytes / wire_bytes;
}

std::vector<std::size_t> fastest_cuts(const std::vector<ModelLayer>& layers, std::int64_t stages) {
  expect_layers(layers, stages);
  const std::size_t n = layers.size(), k = static_cast<std::size_t>(stages);
  // slowest[s][j] is the time of the slowest stage in the best division of the first j layers into s + 1 stages.
  // begin[s][j] is where the last of these stages begins.
  std::vector slowest(k, std::vector(n + 1, std::numeric_limits<double>::infinity()));
  std::vector begin(k, std::vector<std::size_t>(n + 1, 0));
  for (std::size_t j = 1; j <= n; ++j) slowest[0][j] = stage_seconds(layers, 0, j);
  for (std::size_t s = 1; s < k; ++s)
    for (std::size_t j = s + 1; j <= n; ++j)
      for (std::size_t i = s; i < j; ++i) {
        const double time = std::max(slowest[s - 1][i], stage_seconds(layers, i, j));
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
