#include "nn/graph.h"

#include <cmath>

namespace ringtrain {

int Graph::add(Operation operation, int input, std::vector<Parameter> parameters, std::int64_t width) {
  nodes_.push_back({std::move(operation), input});
  node_parameters_.push_back(std::move(parameters));
  widths_.push_back(width);
  return static_cast<int>(nodes_.size()) - 1;
}

int Graph::tokens(std::int64_t length, std::int64_t vocabulary) {
  sequence_ = length;
  return add(TokenInput{length, vocabulary}, -1, {}, vocabulary);
}

int Graph::lstm(int input, std::int64_t hidden, const std::string& name, std::int64_t layer) {
  const std::int64_t width = widths_[static_cast<std::size_t>(input)];
  const bool one_hot = std::holds_alternative<TokenInput>(nodes_[static_cast<std::size_t>(input)].operation);
  const std::string l = "_l" + std::to_string(layer);
  const Lstm op{layer,
                width,
                hidden,
                name + ".weight_ih" + l,
                name + ".weight_hh" + l,
                name + ".bias_ih" + l,
                name + ".bias_hh" + l};
  // torch.nn.LSTM: everything uniform in +-1/sqrt(hidden).
  const double scale = 1 / std::sqrt(static_cast<double>(hidden));
  flops_ += sequence_ * 2 * 4 * hidden * (hidden + (one_hot ? 0 : width));
  state_size_ += 2 * hidden;
  const auto parameter = [&](const std::string& n, std::vector<std::int64_t> shape, ParameterKind kind) {
    return Parameter{n, std::move(shape), kind, InitialValues::uniform, scale};
  };
  return add(op, input,
             {parameter(op.weight_ih, {4 * hidden, width}, ParameterKind::weight),
              parameter(op.weight_hh, {4 * hidden, hidden}, ParameterKind::weight),
              parameter(op.bias_ih, {4 * hidden}, ParameterKind::bias),
              parameter(op.bias_hh, {4 * hidden}, ParameterKind::bias)},
             hidden);
}

int Graph::dropout(int input, double probability, std::int64_t layer) {
  if (probability == 0) return input;
  return add(Dropout{layer, probability}, input, {}, widths_[static_cast<std::size_t>(input)]);
}

int Graph::dense(int input, std::int64_t output, const std::string& name) {
  const std::int64_t width = widths_[static_cast<std::size_t>(input)];
  // torch.nn.Linear: weight and bias uniform in +-1/sqrt(fan in).
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  flops_ += sequence_ * 2 * width * output;
  return add(Dense{width, output, name + ".weight", name + ".bias"}, input,
             {Parameter{name + ".weight", {output, width}, ParameterKind::weight, InitialValues::uniform, scale},
              Parameter{name + ".bias", {output}, ParameterKind::bias, InitialValues::uniform, scale}},
             output);
}

int Graph::cross_entropy(int input) {
  classes_ = widths_[static_cast<std::size_t>(input)];
  return add(CrossEntropy{classes_}, input, {}, 0);
}

ParameterTable Graph::parameters() const {
  ParameterTable table;
  for (auto node = node_parameters_.rbegin(); node != node_parameters_.rend(); ++node)
    for (const Parameter& p : *node) table.append(p);
  return table;
}

}  // namespace ringtrain
