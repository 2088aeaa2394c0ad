// What is computed: nodes, shapes per sample, parameters; no device, no batch, no precision. A backend compiles it.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "nn/parameters.h"

namespace ringtrain {

// Symbol ids u8 [length] per sample.
struct TokenInput {
  std::int64_t length = 0, vocabulary = 0;
};
// Sequence in, sequence out [length, hidden]. After a TokenInput its input is one-hot: a gather of weight columns.
struct Lstm {
  std::int64_t layer = 0, input = 0, hidden = 0;
  std::string weight_ih, weight_hh, bias_ih, bias_hh;  // [4 hidden, input], [4 hidden, hidden], [4 hidden] x 2; i f g o
};
struct Dropout {
  std::int64_t layer = 0;  // part of the random key
  double probability = 0;
};
// At every position: y = x W^T + b.
struct Dense {
  std::int64_t input = 0, output = 0;
  std::string weight, bias;  // [output, input], [output]
};
// Softmax and cross-entropy at every position against targets u8 [length]; ignored_target does not count.
struct CrossEntropy {
  std::int64_t classes = 0;
};

using Operation = std::variant<TokenInput, Lstm, Dropout, Dense, CrossEntropy>;

struct Node {
  Operation operation;
  int input = -1;  // the node that feeds it
};

class Graph {
 public:
  int tokens(std::int64_t length, std::int64_t vocabulary);
  int lstm(int input, std::int64_t hidden, const std::string& name, std::int64_t layer);
  int dropout(int input, double probability, std::int64_t layer);
  int dense(int input, std::int64_t output, const std::string& name);
  int cross_entropy(int input);

  const std::vector<Node>& nodes() const { return nodes_; }  // in order of execution
  std::int64_t sequence() const { return sequence_; }        // positions per sample
  std::int64_t classes() const { return classes_; }
  bool has_batch_norm() const { return false; }                     // then a micro-batch holds whole virtual workers
  std::int64_t forward_flops_per_sample() const { return flops_; }  // multiply and add counted as 2; a gather as 0
  // Values that a stream of text carries from one step to the next, per sample: layers x (h, c) x hidden.
  std::int64_t state_size() const { return state_size_; }

  // Laid out in the order in which the backward pass finishes them (last node first).
  ParameterTable parameters() const;

 private:
  int add(Operation operation, int input, std::vector<Parameter> parameters, std::int64_t width);
  std::vector<Node> nodes_;
  std::vector<std::vector<Parameter>> node_parameters_;
  std::vector<std::int64_t> widths_;  // features per position of each node's output
  std::int64_t sequence_ = 0, classes_ = 0, flops_ = 0, state_size_ = 0;
};

}  // namespace ringtrain
