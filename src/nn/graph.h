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
// Softmax and cross-entropy at every position against targets i32 [length]; ignored_target does not count.
struct CrossEntropy {
  std::int64_t classes = 0;
  double label_smoothing =
      0;  // of training: targets are (1 - s) one-hot + s / classes (Szegedy et al. 2016, section 7)
};

// Pixels u8 [height, width, channels] per sample, normalised per channel: (pixel / 255 - mean) / std.
struct ImageInput {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<double> mean, std;
};
// Zero padding on all sides.
struct Convolution {
  std::int64_t input = 0, output = 0;  // channels
  std::int64_t kernel = 0, stride = 1, padding = 0;
  std::string weight, bias;  // [output, input, kernel, kernel], [output]; bias "": none
};
// Ioffe and Szegedy 2015, over groups of batch.worker samples; inference uses the running statistics.
struct BatchNorm {
  std::int64_t channels = 0;
  double epsilon = 1e-5;
  std::string weight, bias, running_mean, running_var;  // [channels] each
};
struct Relu {};
struct Add {};  // of two inputs
// Padding never wins.
struct MaxPool {
  std::int64_t kernel = 0, stride = 0, padding = 0;
};
struct GlobalAveragePool {};  // [channels, height, width] -> [channels]
struct Flatten {};            // [channels, height, width] -> [channels x height x width], in this order

// Where a part of a model begins or ends: the value comes from the rank of the part before, or goes to the next one's.
struct PartInput {};
struct PartOutput {};

using Operation = std::variant<TokenInput, Lstm, Dropout, Dense, CrossEntropy, ImageInput, Convolution, BatchNorm, Relu,
                               Add, MaxPool, GlobalAveragePool, Flatten, PartInput, PartOutput>;

// Of a node's output, per sample and position. Sequences and vectors have height = width = 1.
struct FeatureShape {
  std::int64_t channels = 0, height = 1, width = 1;
  std::int64_t size() const { return channels * height * width; }
};

struct Node {
  Operation operation;
  std::vector<int> inputs;  // the nodes that feed it
  FeatureShape output;
  std::string block = {};   // the block that it belongs to; "": none
  std::int64_t flops = 0;   // of a forward pass, per sample: multiply and add counted as 2; a gather as 0
  bool recomputed = false;  // the training pass keeps the block's input only, and makes the rest again
};

// Consecutive nodes that users know by one name ("layer1.0", "features.3", "lstm.l0"). One value comes in.
struct Block {
  std::string name;
  std::size_t first = 0, last = 0;  // nodes
  std::int64_t flops = 0;           // of a forward pass, per sample
  bool recomputed = false;
};

class Graph {
 public:
  int tokens(std::int64_t length, std::int64_t vocabulary);
  // Everything starts uniform in +-1/sqrt(hidden), as torch.nn.LSTM's. A `forget_bias` that is not 0 is what bias_ih of
  // the forget gates starts at; bias_hh stays as it is (char-rnn).
  int lstm(int input, std::int64_t hidden, const std::string& name, std::int64_t layer, double forget_bias = 0);
  int dropout(int input, double probability, std::int64_t layer);
  // Weight and bias start uniform in +-1/sqrt(fan in), as torch.nn.Linear's; with `deviation` above 0 the weight is
  // N(0, deviation^2) and the bias 0.
  int dense(int input, std::int64_t output, const std::string& name, double deviation = 0);
  int image(std::int64_t height, std::int64_t width, std::vector<double> mean, std::vector<double> std);
  // He initialisation: N(0, 2 / (output x kernel^2)), as torchvision's "fan_out" (He et al. 2015).
  int convolution(int input, std::int64_t output, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                  const std::string& name, bool bias = false);
  int batch_norm(int input, const std::string& name, double initial_weight = 1);  // of gamma; beta starts at 0
  int relu(int input);
  int add(int left, int right);
  int max_pool(int input, std::int64_t kernel, std::int64_t stride, std::int64_t padding);
  int global_average_pool(int input);
  int flatten(int input);
  int cross_entropy(int input, double label_smoothing = 0);

  // The nodes from here on belong to this block, until the next one begins; "": to none. The input and the layer that
  // the loss reads belong to none.
  void begin_block(std::string name) { block_ = std::move(name); }
  std::vector<Block> blocks() const;  // in order of execution
  // These blocks are recomputed in the backward pass and no others (Chen et al. 2016). A name stands for itself and for
  // all blocks below it: "layer1" for layer1.0, layer1.1 and so on. Throws Error with the names that there are.
  void recompute(const std::vector<std::string>& names);
  // Activations of early layers wait for the backward pass in the host's memory (devices with memory of their own):
  // as many as are carried in `stretch` times the time of the passes. 1: nobody waits for a copy; 0: none.
  void offload(double stretch) { offload_ = stretch; }
  bool offloads() const { return offload_ > 0; }
  double offload_stretch() const { return offload_; }

  // Other initial values, for the layers so far. Norms keep theirs, and so do forget gates with a bias of their own.
  // Weights and biases uniform in +-range.
  void start_uniform(double range);
  // Weights of convolutions and dense layers from a normal cut off at 2 deviations, of variance 2 / fan in
  // (tf.keras.initializers.he_normal, as MLPerf's reference); where a layer was given a deviation, it keeps that.
  // Biases 0.
  void start_truncated_normal();

  const std::vector<Node>& nodes() const { return nodes_; }  // in order of execution
  std::int64_t sequence() const { return sequence_; }        // positions per sample
  std::int64_t classes() const { return classes_; }
  bool has_images() const { return has_images_; }
  bool has_batch_norm() const { return has_batch_norm_; }           // then a micro-batch holds whole virtual workers
  std::int64_t input_bytes() const { return input_bytes_; }         // of one sample: symbol ids or pixels
  std::int64_t forward_flops_per_sample() const { return flops_; }  // multiply and add counted as 2; a gather as 0
  // Values that a stream of text carries from one step to the next, per sample: layers x (h, c) x hidden.
  std::int64_t state_size() const { return state_size_; }

  // Laid out in the order in which the backward pass finishes them (last node first), then the running statistics.
  ParameterTable parameters() const;

  // Floating-point operations of a node's forward pass, per sample.
  std::int64_t forward_flops_of(int node) const { return nodes_[static_cast<std::size_t>(node)].flops; }
  const std::vector<Parameter>& parameters_of(int node) const {
    return node_parameters_[static_cast<std::size_t>(node)];
  }
  // Whether the model can be cut before this node: one value crosses, and this node, which multiplies by weights, reads
  // it.
  bool can_be_cut(int node) const;
  // Nodes [first, last) with a PartInput before them where first > 0, and a PartOutput after them where the model goes
  // on; sequence, classes and kind of input are the whole model's. Throws Error where the model cannot be cut so.
  Graph part(int first, int last) const;

 private:
  int append(Operation operation, std::vector<int> inputs, std::vector<Parameter> parameters, FeatureShape output,
             std::int64_t flops = 0);
  // Whether this node is an input of the model.
  bool is_input(int node) const;
  const FeatureShape& shape(int node) const { return nodes_[static_cast<std::size_t>(node)].output; }
  std::vector<Node> nodes_;
  std::vector<std::vector<Parameter>> node_parameters_;
  std::string block_;  // that nodes are added to
  std::int64_t sequence_ = 0, classes_ = 0, flops_ = 0, state_size_ = 0, input_bytes_ = 0;
  bool has_images_ = false, has_batch_norm_ = false;
  double offload_ = 0;
};

}  // namespace ringtrain
