#include "backend/cuda/image/program.h"

#include <algorithm>

#include "backend/cuda/image/emission.h"
#include "backend/cuda/image/layers.h"
#include "backend/cuda/program/base.h"
#include "base/error.h"
#include "base/rounding.h"
#include "nn/graph.h"

namespace ringtrain::cuda {
namespace {

// Turns the graph of an image model into layers. Neighbouring nodes that can run as one become one layer.
struct ImageLayers {
  std::vector<std::unique_ptr<ImageLayer>> layers;  // in order of execution
  std::vector<int> blocks;                          // the block of each recomputed layer, else -1
  std::vector<std::unique_ptr<Value>> values;
  std::vector<std::unique_ptr<NormStatistics>> norms;
};

// These sequences of nodes become one layer each: norm -> ReLU, norm -> add, norm -> add -> ReLU (the other operand may
// be a norm too), and bias -> ReLU. All other nodes are compiled one by one. A shortcut's convolution runs after the
// main branch. In the backward pass the branch's first convolution is then the last to send its gradient, and can add
// the shortcut's gradient. join() throws Error when the graph cannot be compiled.
class Joiner : GraphReader {
 public:
  Joiner(const Graph& graph, const ImageContext& context)
      : GraphReader(graph),
        context_(context),
        value_(graph.nodes().size()),
        statistics_(graph.nodes().size()),
        done_(graph.nodes().size()) {}

  ImageLayers join() {
    for (int i = 0; i < size(); ++i)
      if (!is_shortcut(i)) visit(i);
    if (!ends_) throw Error("a model of images ends in a cross-entropy");
    return std::move(result_);
  }

 private:
  // Returns whether the node is a shortcut's convolution or the norm after it. Such a node waits until its addition is
  // visited.
  bool is_shortcut(int node) const {
    const int norm = as<Norm>(node) != nullptr          ? node
                     : as<Convolution>(node) != nullptr ? consumer_that_is<Norm>(node)
                                                        : -1;
    const int add = norm >= 0 && as<Convolution>(input(norm)) != nullptr ? consumer_that_is<Add>(norm) : -1;
    return add >= 0 && std::max(input(add, 0), input(add, 1)) != norm;
  }
  void visit(int node) {
    if (done_[at(node)]) return;
    done_[at(node)] = true;
    for (const int from : node_at(node).inputs) visit(from);
    block_ = node_at(node).recomputed && context_.training ? block_of(node) : -1;
    std::visit([&](const auto& operation) { append(node, operation); }, node_at(node).operation);
  }

  Value& make(int node, std::string name) {
    const FeatureShape& shape = node_at(node).output;
    result_.values.push_back(std::make_unique<Value>(
        Value{.name = std::move(name), .shape = shape, .width = round_up(shape.channels, 8), .type = context_.type}));
    value_[at(node)] = result_.values.back().get();
    return *value_[at(node)];
  }
  Value& value(int node) const { return *value_[at(node)]; }
  template <class Layer>
  Layer* keep(std::unique_ptr<Layer> layer) {
    Layer* kept = layer.get();
    result_.layers.push_back(std::move(layer));
    result_.blocks.push_back(block_);
    return kept;
  }
  static std::string stem(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

  void append(int, const TokenInput&) { throw Error("a model reads symbols or images, not both"); }
  void append(int, const Lstm&) { throw Error("the CUDA backend has no LSTM in a model of images"); }

  void append(int i, const ImageInput& node) {
    if (node.channels > 4) throw Error(cat("images of ", node.channels, " channels: the input kernel takes four"));
    Value& y = make(i, "pixels");
    y.width = 4;
    y.needs_gradient = false;
    pixels_ = keep(std::make_unique<PixelLayer>(context_, node, y));
  }
  // Returns whether the convolution reads windows: it has a stride, computes in 16 bits, and alone reads the pixels. A
  // window with more than widest_image_window channels would cost more memory than it saves time.
  bool takes_windows(int i, const Convolution& node) const {
    const int from = input(i);
    return as<ImageInput>(from) != nullptr && consumer(from) == i && context_.type != Type::fp32 && node.stride > 1 &&
           node.kernel > 1 && node.kernel * node.kernel * value(from).shape.channels <= widest_image_window;
  }

  void append(int i, const PartInput& node) {
    keep(make_layer(context_, node, make(i, "activations of the part before")));
  }
  // A value crosses the cut between two parts in its memory layout, so both parts must give it the same width.
  void append(int i, const PartOutput& node) {
    Value& x = value(input(i));
    if (x.width != round_up(x.shape.channels, 8))
      throw Error(cat(x.name, ": a stage on a GPU cannot end after the flattening of ", x.shape.channels, " channels"),
                  "parallel.cuts: let the stage end before or after the layers between flattening and this cut");
    keep(make_layer(context_, node, x));
    ends_ = true;
  }

  void append(int i, const Convolution& node) {
    const std::string name = stem(node.weight);
    Value &x = value(input(i)), &y = make(i, name);
    if (takes_windows(i, node)) pixels_->take_windows(node, x, y.shape);
    keep(make_layer(context_, node, x, y));
    if (!node.bias.empty()) add_bias(i, node.bias, name);
  }

  // Adds the bias after a product, and the ReLU if one follows.
  void add_bias(int i, const std::string& bias, const std::string& name) {
    const int relu = consumer_that_is<Relu>(i);
    Value& x = value(i);
    Value& y = make(relu >= 0 ? relu : i, name + (relu >= 0 ? " relu" : " bias"));
    y.width = x.width;
    y.type = x.type;
    keep(make_activation(context_, bias, relu >= 0, x, y));
  }

  // Creates the norm's statistics. If an addition or a ReLU follows, that node adds the layer that applies the norm.
  void append(int i, const Norm& node) {
    result_.norms.push_back(std::make_unique<NormStatistics>(context_, node, value(input(i))));
    statistics_[at(i)] = result_.norms.back().get();
    if (consumer_that_is<Relu>(i) < 0 && consumer_that_is<Add>(i) < 0) apply(i, i, {});
  }
  // Adds a layer that applies the norm of node `norm`. `parts` says what is added. `last` is the node whose value the
  // layer makes.
  void apply(int norm, int last, NormLayer::Parts parts) {
    parts.norm = statistics_[at(norm)];
    parts.x = &value(input(norm));
    parts.relu = as<Relu>(last) != nullptr;
    Value& y = make(last, parts.norm->name() + (parts.relu ? " relu" : ""));
    keep(std::make_unique<NormLayer>(context_, parts, y));
  }

  void append(int i, const Relu&) {
    const int x = input(i);
    if (value_[at(i)] != nullptr) return;  // already made with the bias
    if (as<Norm>(x) != nullptr && consumer(x) == i) return apply(x, i, {});
    if (as<Add>(x) != nullptr && consumer(x) == i && add_norm(x, i)) return;
    keep(make_activation(context_, "", true, value(x), make(i, cat("relu ", i))));
  }

  void append(int i, const Add& node) {
    const bool takes_norm = norm_of(i, 0) >= 0 || norm_of(i, 1) >= 0;
    if (takes_norm && consumer_that_is<Relu>(i) >= 0) return;  // the ReLU's layer includes the addition
    if (takes_norm && add_norm(i, i)) return;
    Value &a = value(input(i, 0)), &b = value(input(i, 1));
    keep(make_layer(context_, node, a, b, make(i, cat("sum ", i))));
  }

  // Returns the norm that makes an operand of an addition, if no other node reads it; else -1.
  int norm_of(int add, std::size_t which) const {
    const int from = input(add, which);
    return as<Norm>(from) != nullptr && consumer(from) == add ? from : -1;
  }
  // Adds a layer for the addition `node` and the ReLU `last` after it (or `last` = `node`). Returns false when no
  // operand is a norm.
  bool add_norm(int node, int last) {
    const std::size_t first = norm_of(node, 0) >= 0 ? 0 : 1;
    const int norm = norm_of(node, first), other = norm_of(node, 1 - first);
    if (norm < 0) return false;
    if (other >= 0)
      apply(norm, last, {.other = &value(input(other)), .other_norm = statistics_[at(other)]});
    else
      apply(norm, last, {.other = &value(input(node, 1 - first))});
    return true;
  }

  // Adds a layer whose result is as wide as its input.
  template <class Kind>
  void add_layer(int i, const Kind& node, std::string name) {
    Value& x = value(input(i));
    Value& y = make(i, std::move(name));
    y.width = x.width;
    keep(make_layer(context_, node, x, y));
  }
  void append(int i, const MaxPool& node) { add_layer(i, node, cat("max pooling ", i)); }
  void append(int i, const GlobalAveragePool& node) { add_layer(i, node, "average pooling"); }
  void append(int i, const Flatten& node) {
    Value& x = value(input(i));
    Value& y = make(i, "flattened");
    y.width = x.elements();
    keep(make_layer(context_, node, x, y));
  }
  void append(int i, const Dropout& node) {
    if (context_.training)
      add_layer(i, node, cat("dropout ", node.layer));
    else
      value_[at(i)] = value_[at(input(i))];
  }
  void append(int i, const Dense& node) {
    Value& x = value(input(i));
    if (x.pixels() != 1) throw Error(cat(node.weight, ": a dense layer needs flattening or average pooling before it"));
    Value& y = make(i, stem(node.weight));
    if (consumer_that_is<CrossEntropy>(i) >= 0) y.type = Type::fp32;
    keep(make_layer(context_, node, x, y));
    add_bias(i, node.bias, stem(node.weight));
  }
  void append(int i, const CrossEntropy& node) {
    if (as<Dense>(input(i)) == nullptr || consumer(input(i)) < 0)
      throw Error("the CUDA backend computes the cross-entropy of a dense layer's output only");
    keep(make_layer(context_, node, value(input(i))));
    ends_ = true;
  }

  const ImageContext& context_;
  std::vector<Value*> value_;                // one per node; null until a layer makes it
  std::vector<NormStatistics*> statistics_;  // by node
  std::vector<bool> done_;
  PixelLayer* pixels_ = nullptr;
  int block_ = -1;     // block of the current node when it is recomputed, else -1
  bool ends_ = false;  // whether the loss or the end of the part was compiled
  ImageLayers result_;
};

class ImageProgram : public ProgramBase {
 public:
  ImageProgram(Device& device, const BackendOptions& options, const Graph& graph, std::int64_t micro_batch,
               std::int64_t group, Precision precision, PassMode mode, int slots)
      : ProgramBase(device, options, graph, micro_batch, precision, mode, slots),
        context_{.device = &device,
                 .parameters = &parameters_,
                 .type = type_,
                 .math = math_,
                 .training = training_,
                 .measures = mode != PassMode::inference,
                 .samples = micro_batch,
                 .group = std::min(group, micro_batch),
                 .span = std::max<std::int64_t>(1, group / micro_batch),
                 .norm_team = &norm_team_},
        parts_(Joiner(graph, context_).join()),
        choices_(choose(*options.fusions)),
        emission_(context_, choices_, *this, options.segment_elements) {
    for (std::size_t i = 0; i < parts_.layers.size(); ++i) {
      schedule_.enter(parts_.blocks[i]);
      parts_.layers[i]->forward(emission_);
    }
    if (training_) add_backward();
    const TensorGroup &weights = emission_.weights(), &vectors = emission_.vectors();
    copy_in(weights.storage(), type_ == Type::fp32, weights.places());
    copy_in(vectors.storage(), true, vectors.places());
    finish();
  }

  // The sums over groups are in the program's own layout; each place has [channels].
  std::vector<float> statistics() const override {
    const TensorGroup& sums = emission_.statistics();
    const std::vector<float> own = fetch(sums.storage(), sums.elements());
    std::vector<float> all(static_cast<std::size_t>(parameters_.size() - parameters_.trained()));
    for (const TensorPlace& place : sums.places())
      std::copy_n(own.begin() + place.own_offset, place.inner, all.begin() + place.flat_offset - parameters_.trained());
    return all;
  }

 protected:
  void before_forward(const PassContext& context) override {
    if (context_.span == 1) return;
    norm_team_ = dynamic_cast<DeviceNormTeam*>(context.norm_team);
    if (norm_team_ == nullptr || norm_team_->size() != context_.span)
      throw Error(cat("a pass of ", micro_batch_, " images needs the ", context_.span,
                      " ranks of its batch-norm group, on devices"));
  }

 private:
  Choices choose(FusionTable& fusions) const {
    std::vector<LayerSite> sites;
    for (const auto& layer : parts_.layers) layer->list_sites(sites);
    std::vector<FusionSite> questions;
    for (const LayerSite& site : sites)
      if (!site.site.ways.empty()) questions.push_back(site.site);
    const std::vector<std::size_t> ways = fusions.choose(device_, questions);
    Choices choices;
    std::size_t asked = 0;
    for (const LayerSite& site : sites) site.take(site.site.ways.empty() ? 0 : ways[asked++], choices);
    return choices;
  }

  void add_backward() {
    schedule_.begin_backward();
    for (std::size_t i = parts_.layers.size(); i-- > 0;) {
      schedule_.enter(parts_.blocks[i]);
      parts_.layers[i]->backward(emission_);
    }
    schedule_.enter(-1);
    emission_.home().flush();
    const TensorGroup& sums = emission_.statistics();
    if (!sums.places().empty()) copy_home("statistics home", sums.storage(), true, sums.places(), sums.names());
  }

  DeviceNormTeam* norm_team_ = nullptr;
  const ImageContext context_;
  const ImageLayers parts_;
  const Choices choices_;
  Emission emission_;
};

}  // namespace

std::unique_ptr<Program> make_image_program(Device& device, const BackendOptions& options, const Graph& graph,
                                            std::int64_t micro_batch, std::int64_t group, Precision precision,
                                            PassMode mode, int slots) {
  check_norm_groups(micro_batch, group);
  return std::make_unique<ImageProgram>(device, options, graph, micro_batch, group, precision, mode, slots);
}

}  // namespace ringtrain::cuda
