// The graph of a model: its nodes, their shapes per sample, and its parameters. It does not depend on a device, a batch
// or a precision. A backend compiles it into a program.
//
// This folder has the mathematics that is independent of a device. Graph describes a model; ParameterTable
// (parameters.h) says where each tensor lies in the flat vector; ArenaPlan (arena.h) plans a program's memory. The
// other headers contain formulas that CPU and GPU kernels share. Begin reading with the class Graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "nn/parameters.h"

namespace ringtrain {

// The input of a text model: symbol ids u8 [length] per sample.
struct TokenInput {
  std::int64_t length = 0, vocabulary = 0;
};
// An LSTM layer. Input and output are sequences; the output is [length, hidden]. After a TokenInput the input is
// one-hot, so the product with the weights is a gather of weight columns.
struct Lstm {
  std::int64_t layer = 0, input = 0, hidden = 0;
  // [4 hidden, input], [4 hidden, hidden], [4 hidden], [4 hidden]. The gates are in the order i, f, g, o.
  std::string weight_ih, weight_hh, bias_ih, bias_hh;
};
struct Dropout {
  std::int64_t layer = 0;  // part of the random key
  double probability = 0;
};
// Computes y = x W^T + b at every position.
struct Dense {
  std::int64_t input = 0, output = 0;
  std::string weight, bias;  // [output, input], [output]
};
// Computes softmax and cross-entropy at every position, for targets i32 [length]. A position whose target is
// ignored_target does not count.
struct CrossEntropy {
  std::int64_t classes = 0;
  double label_smoothing =
      0;  // in training the targets are (1 - s) one-hot + s / classes (Szegedy et al. 2016, section 7)
};

// The input of an image model: pixels u8 [height, width, channels] per sample, normalised per channel as
// (pixel / 255 - mean) / std.
struct ImageInput {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<double> mean, std;
};
// A 2-D convolution with zero padding on all sides.
struct Convolution {
  std::int64_t input = 0, output = 0;  // channels
  std::int64_t kernel = 0, stride = 1, padding = 0;
  std::string weight, bias;  // [output, input, kernel, kernel], [output]; bias "": no bias
};
// Computes y = gamma (x - mean) / sqrt(variance + epsilon) + beta, with gamma and beta per channel.
//
// Batch norm (Ioffe and Szegedy 2015) measures each channel by itself, over a group of batch.worker samples. Inference
// uses the running statistics. Group norm (Wu and He 2018) measures each sample by itself, over a group of neighbouring
// channels, in inference too. It has no running statistics.
struct Norm {
  std::int64_t channels = 0;
  std::int64_t channel_groups = 0;  // of group norm; a divisor of channels; 0: batch norm
  double epsilon = 1e-5;
  std::string weight, bias, running_mean, running_var;  // [channels] each; group norm has the first two

  bool by_sample() const { return channel_groups > 0; }
  std::int64_t channels_together() const { return by_sample() ? channels / channel_groups : 1; }
};
struct Relu {};
struct Add {};  // adds two inputs
// Max pooling. A padded position is never the maximum.
struct MaxPool {
  std::int64_t kernel = 0, stride = 0, padding = 0;
};
struct GlobalAveragePool {};  // [channels, height, width] -> [channels]
struct Flatten {};            // [channels, height, width] -> [channels x height x width], in this order

// The ends of a part of a model. The value of a PartInput comes from the rank with the previous part. The value of a
// PartOutput goes to the rank with the next part.
struct PartInput {};
struct PartOutput {};

using Operation = std::variant<TokenInput, Lstm, Dropout, Dense, CrossEntropy, ImageInput, Convolution, Norm, Relu, Add,
                               MaxPool, GlobalAveragePool, Flatten, PartInput, PartOutput>;

// The shape of a node's output, per sample and position. Sequences and vectors have height = width = 1.
struct FeatureShape {
  std::int64_t channels = 0, height = 1, width = 1;
  std::int64_t size() const { return channels * height * width; }
};

struct Node {
  Operation operation;
  std::vector<int> inputs;  // the nodes whose outputs it reads
  FeatureShape output;
  std::string block = {};   // the block that it belongs to; "": none
  std::int64_t flops = 0;   // operations of a forward pass, per sample: multiply and add are 2, a gather is 0
  bool recomputed = false;  // training keeps only the block's input and recomputes the rest
  std::vector<Parameter> parameters = {};
};

// Consecutive nodes with one name for users ("layer1.0", "features.3", "lstm.l0"). A block has one input value.
struct Block {
  std::string name;
  std::size_t first = 0, last = 0;  // nodes
  std::int64_t flops = 0;           // operations of a forward pass, per sample
  bool recomputed = false;
};

class Graph {
 public:
  // The functions from tokens() to cross_entropy() add a node and return its index. `input` is the index of an earlier
  // node. dropout() with probability 0 adds nothing. convolution() and max_pool() throw Error if the image is too
  // small.
  int tokens(std::int64_t length, std::int64_t vocabulary);
  // All values start uniform in +-1/sqrt(hidden), as in torch.nn.LSTM. If `forget_bias` is not 0, bias_ih of the forget
  // gates starts at `forget_bias`; bias_hh does not change (char-rnn).
  int lstm(int input, std::int64_t hidden, const std::string& name, std::int64_t layer, double forget_bias = 0);
  int dropout(int input, double probability, std::int64_t layer);
  // Weight and bias start uniform in +-1/sqrt(fan in), as in torch.nn.Linear. If `deviation` is above 0, the weight
  // starts as N(0, deviation^2) and the bias as 0.
  int dense(int input, std::int64_t output, const std::string& name, double deviation = 0);
  // A dense layer on all pixels of a square map, with dense()'s initial values. It is a convolution with a single
  // window, so that images have one way into a network, and that a norm can follow. The weight is [output, channels,
  // height, width], in flatten()'s order, or [output, channels] on a map of one pixel, as in dense().
  int dense_on_map(int map, std::int64_t output, const std::string& name, bool bias = true);
  int image(std::int64_t height, std::int64_t width, std::vector<double> mean, std::vector<double> std);
  // The weights start with He initialisation: N(0, 2 / (output x kernel^2)), "fan_out" in torchvision (He et al. 2015).
  int convolution(int input, std::int64_t output, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                  const std::string& name, bool bias = false);
  // Gamma starts at `initial_weight` and beta at 0. group_norm() throws Error if `groups` does not divide the channels.
  int batch_norm(int input, const std::string& name, double initial_weight = 1);
  int group_norm(int input, std::int64_t groups, const std::string& name, double initial_weight = 1);
  int relu(int input) { return append(Relu{}, {input}, {}, shape(input)); }
  int add(int left, int right) { return append(Add{}, {left, right}, {}, shape(left)); }
  int max_pool(int input, std::int64_t kernel, std::int64_t stride, std::int64_t padding);
  int global_average_pool(int input) { return append(GlobalAveragePool{}, {input}, {}, {shape(input).channels}); }
  int flatten(int input) { return append(Flatten{}, {input}, {}, {shape(input).size()}); }
  int cross_entropy(int input, double label_smoothing = 0);

  // Nodes that are added after this call belong to the block `name`, until the next call. "" means no block. The input
  // and the layer whose output the loss reads belong to no block.
  void begin_block(std::string name) { block_ = std::move(name); }
  std::vector<Block> blocks() const;  // in order of execution
  // Only these blocks are recomputed in the backward pass (Chen et al. 2016). A name stands for itself and for all
  // blocks below it: "layer1" stands for layer1.0, layer1.1 and so on. Throws Error with the known names if a name is
  // unknown.
  void recompute(const std::vector<std::string>& names);
  // Moves activations of early layers to the host's memory until the backward pass needs them (for devices with their
  // own memory). As many activations are moved as can be copied in `stretch` x the time of the passes. 1: no pass waits
  // for a copy. 0: no activation is moved.
  void offload(double stretch) { offload_ = stretch; }
  bool offloads() const { return offload_ > 0; }
  double offload_stretch() const { return offload_; }

  // start_uniform() and start_truncated_normal() change the initial values of the layers that exist so far. Norms keep
  // their values, and so do forget gates with a bias of their own. start_uniform() makes weights and biases uniform in
  // +-range.
  void start_uniform(double range);
  // Weights of convolutions and dense layers come from a normal distribution that is cut off at 2 deviations, with
  // variance 2 / fan in (tf.keras.initializers.he_normal, as in MLPerf's reference). A dense layer with a deviation of
  // its own keeps that deviation. Biases are 0.
  void start_truncated_normal();

  const std::vector<Node>& nodes() const { return nodes_; }  // in order of execution
  std::int64_t sequence() const { return sequence_; }        // positions per sample
  std::int64_t classes() const { return classes_; }
  bool has_images() const { return has_images_; }
  bool has_batch_norm() const { return has_batch_norm_; }           // if true, a micro-batch has whole virtual workers
  std::int64_t input_bytes() const { return input_bytes_; }         // of one sample: symbol ids or pixels
  std::int64_t forward_flops_per_sample() const { return flops_; }  // multiply and add count as 2, a gather as 0
  // Returns the operations of the products of a forward and a backward pass, per sample. They are three times those of
  // the forward pass: the backward pass has a product for the gradient of the input and one for that of the weights.
  // The first layer of pictures has no gradient of its input. Blocks that are recomputed count once.
  std::int64_t training_flops_per_sample() const;
  // Returns the number of values that a stream of text carries from one step to the next, per sample: layers x (h, c) x
  // hidden.
  std::int64_t state_size() const { return state_size_; }

  // Returns the parameters in the order in which the backward pass finishes them (last node first). The running
  // statistics come after them.
  ParameterTable parameters() const;

  const std::vector<Parameter>& parameters_of(int node) const {
    return nodes_[static_cast<std::size_t>(node)].parameters;
  }
  // Returns whether the model can be cut before this node. Only one value may cross the cut. It must not be the model's
  // input, and the node must read it and multiply it by weights.
  bool can_be_cut(int node) const;
  // Returns the nodes [first, last) as a graph of their own. A PartInput comes before them if first > 0, and a
  // PartOutput after them if the model continues. The sequence, the classes and the kind of input are those of the
  // whole model. Throws Error if the model cannot be cut there.
  Graph part(int first, int last) const;

 private:
  int append(Operation operation, std::vector<int> inputs, std::vector<Parameter> parameters, FeatureShape output,
             std::int64_t flops = 0);
  // Returns whether this node is an input of the model.
  bool is_input(int node) const;
  const FeatureShape& shape(int node) const { return nodes_[static_cast<std::size_t>(node)].output; }
  std::vector<Node> nodes_;
  std::string block_;  // the block of the nodes that are added
  std::int64_t sequence_ = 0, classes_ = 0, flops_ = 0, state_size_ = 0, input_bytes_ = 0;
  bool has_images_ = false, has_batch_norm_ = false;
  double offload_ = 0;
};

// Answers questions about the nodes of a graph, which backends ask when they join neighbouring nodes.
class GraphReader {
 public:
  // Keeps a reference to the graph's nodes.
  explicit GraphReader(const Graph& graph)
      : nodes_(graph.nodes()), consumers_(nodes_.size()), block_of_(nodes_.size()) {
    for (int i = 0; i < size(); ++i)
      for (const int from : node_at(i).inputs) consumers_[at(from)].push_back(i);
    for (int i = 1; i < size(); ++i)
      block_of_[at(i)] = block_of_[at(i - 1)] + (node_at(i).block != node_at(i - 1).block ? 1 : 0);
  }

  static std::size_t at(int node) { return static_cast<std::size_t>(node); }
  int size() const { return static_cast<int>(nodes_.size()); }
  const Node& node_at(int i) const { return nodes_[at(i)]; }
  int input(int i, std::size_t which = 0) const { return node_at(i).inputs[which]; }
  // Returns the node's operation, or null if it is of another kind.
  template <class Kind>
  const Kind* as(int i) const {
    return std::get_if<Kind>(&node_at(i).operation);
  }
  const std::vector<int>& consumers(int i) const { return consumers_[at(i)]; }
  // Returns the only consumer, or -1 if there is none or more than one.
  int consumer(int i) const { return consumers(i).size() == 1 ? consumers(i)[0] : -1; }
  template <class Kind>
  int consumer_that_is(int i) const {
    const int next = consumer(i);
    return next >= 0 && as<Kind>(next) != nullptr ? next : -1;
  }
  // Returns the number of the node's block. Neighbouring nodes outside of blocks have a number of their own, too.
  int block_of(int i) const { return block_of_[at(i)]; }

 private:
  const std::vector<Node>& nodes_;
  std::vector<std::vector<int>> consumers_;
  std::vector<int> block_of_;
};

// Cutting a model into consecutive parts for the stages of a pipeline.

// The nodes between two places where a model can be cut, for example a residual block, or a layer with the nodes after
// it.
struct ModelLayer {
  std::string name;               // such as "layer2.0", "features.3", "lstm.l1"
  int first = 0, last = 0;        // nodes [first, last)
  std::int64_t flops = 0;         // operations of a forward pass, per sample
  std::int64_t values = 0;        // values written by its nodes, per sample
  std::int64_t input_values = 0;  // values that cross a cut before this layer, per sample; 0: first layer
};

// Returns the layers in order of execution. There is no cut before the first layer.
std::vector<ModelLayer> layers_of(const Graph& graph);

// Returns the seconds per sample of layers [first, last) as one stage. They include the forward pass, twice its time
// for the backward pass, and the values that cross both ends of the stage in both directions.
double stage_seconds(const std::vector<ModelLayer>& layers, std::size_t first, std::size_t last);

// Returns the first layer of each stage after the first stage, chosen so that the slowest stage is as fast as possible.
// The method is dynamic programming over (stages, layers) in O(stages x layers^3) operations. Throws Error if there are
// fewer layers than stages.
std::vector<std::size_t> fastest_cuts(const std::vector<ModelLayer>& layers, std::int64_t stages);

// Returns the cuts that `names` give. A name is that of a layer, of a group of layers ("layer3"), or of a tensor in a
// layer. Throws Error if a name cannot begin a stage, if the number of names is wrong, or if the names are not in
// ascending order.
std::vector<std::size_t> named_cuts(const std::vector<ModelLayer>& layers, const Graph& graph,
                                    const std::vector<std::string>& names, std::int64_t stages);

}  // namespace ringtrain
