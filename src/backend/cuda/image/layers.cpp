#include "backend/cuda/image/layers.h"

#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain::cuda {

void PixelLayer::take_windows(const Convolution& node, Value& y, const FeatureShape& result) {
  windows_ = {.kernel = static_cast<int>(node.kernel),
              .stride = static_cast<int>(node.stride),
              .padding = static_cast<int>(node.padding),
              .height = static_cast<int>(y.shape.height),
              .width = static_cast<int>(y.shape.width),
              .out_height = static_cast<int>(result.height),
              .out_width = static_cast<int>(result.width)};
  y.windows = true;
  y.shape = {.channels = y.shape.channels * node.kernel * node.kernel, .height = result.height, .width = result.width};
  y.width = round_up(y.shape.channels, 8);
}

void PixelLayer::forward(Emission& e) const {
  const Storage y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
  ImageInputArguments a{.pixels = nullptr,
                        .output = nullptr,
                        .pixel_count = c_.samples * y_.pixels(),
                        .channels = static_cast<int>(node_.channels),
                        .padded = static_cast<int>(y_.width),
                        .scale = {},
                        .shift = {},
                        .windows = windows_};
  for (std::size_t c = 0; c < node_.mean.size(); ++c) {
    a.scale[c] = static_cast<float>(1 / (255 * node_.std[c]));
    a.shift[c] = static_cast<float>(-node_.mean[c] / node_.std[c]);
  }
  e.program().add_input_command(y_.name, {{y, true}},
                                [=, this, &e](Device& device, Stream stream, const std::uint8_t* pixels) {
                                  ImageInputArguments now = a;
                                  now.pixels = pixels;
                                  now.output = e.at(y);
                                  device.launch(launch_of(c_.type, now), stream);
                                });
}

LossLayer::LossLayer(const ImageContext& context, const CrossEntropy& node, Value& logits)
    : ImageLayer(context), node_(node), logits_(logits) {
  read(logits);
}

void LossLayer::forward(Emission& e) const {
  const int blocks = loss_blocks(c_.device->facts().size(), c_.type, c_.samples);
  const std::int64_t rows = c_.samples;
  const Storage partial = e.buffer("partial sums of the loss", blocks * static_cast<std::int64_t>(sizeof(PassSums)));
  // The counter must be zero between launches. Memory starts as zeros, and the kernel resets the counter.
  const Storage finished = e.schedule().lasting("blocks of the loss that are done", sizeof(unsigned));
  if (c_.training) e[logits_].gradient = e.buffer(logits_.name + " gradient", rows * logits_.width * bytes_of(c_.type));
  const Storage logits = e[logits_].data, gradient = e[logits_].gradient;
  e.kernel("loss", {{logits}, {partial, true}, {finished, true}, {gradient, true}}, [=, this, &e](bool) {
    return launch_of(
        c_.type, CrossEntropyArguments{.logits = e.at<float>(logits),
                                       .targets = e.program().targets(),
                                       .gradient = e.at(gradient),
                                       .partial = e.at<PassSums>(partial),
                                       .sums = e.program().sums(),
                                       .finished = e.at<unsigned>(finished),
                                       .state = e.step_state(),
                                       .samples = rows,
                                       .length = 1,
                                       .classes = static_cast<int>(node_.classes),
                                       .stride = static_cast<int>(logits_.width),
                                       .blocks = blocks,
                                       .label_smoothing = static_cast<float>(c_.training ? node_.label_smoothing : 0),
                                       .top5 = true});
  });
}

namespace {

// These layers are the two ends of a part of a model. A value crosses an end in its memory layout:
// [samples][pixels][width].
class PartInputLayer : public ImageLayer {
 public:
  PartInputLayer(const ImageContext& context, Value& y) : ImageLayer(context), y_(y) {}
  void forward(Emission& e) const override {
    const Storage y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    e.program().add_arrival("activations arrive", y, &PartTraffic::activations_in, &PartBytes::activations_in);
  }
  void backward(Emission& e) const override {
    e.program().add_departure("gradients leave", e[y_].gradient, &PartTraffic::gradients_out,
                              &PartBytes::gradients_out);
  }

 private:
  const Value& y_;
};
class PartOutputLayer : public ImageLayer {
 public:
  PartOutputLayer(const ImageContext& context, Value& x) : ImageLayer(context), x_(x) { read(x); }
  void forward(Emission& e) const override {
    e.program().add_departure("activations leave", e[x_].data, &PartTraffic::activations_out,
                              &PartBytes::activations_out);
  }
  void backward(Emission& e) const override {
    const Storage gradient = e.buffer("gradient of the part after", c_.bytes(x_));
    e.program().add_arrival("gradients arrive", gradient, &PartTraffic::gradients_in, &PartBytes::gradients_in);
    e.send_gradient(x_, gradient);
  }

 private:
  const Value& x_;
};

// Computes y = x [+ bias per channel] [, ReLU]. The result overwrites x when no other layer reads x.
class ActivationLayer : public ImageLayer {
 public:
  ActivationLayer(const ImageContext& context, const std::string& bias, bool relu, Value& x, Value& y)
      : ImageLayer(context),
        parameter_(bias.empty() ? nullptr : &context.parameters->find(bias)),
        relu_(relu),
        x_(x),
        y_(y) {
    read(x);
  }
  void forward(Emission& e) const override {
    const Storage x = e[x_].data, y = e[y_].data = x_.readers == 1 ? x : e.buffer(y_.name, c_.bytes(y_));
    if (c_.training && relu_) e[y_].kept = e.buffer(y_.name + " mask", c_.samples * y_.elements() / 8);
    const Storage mask = e[y_].kept;
    const Tensor bias = parameter_ != nullptr ? e.vector(*parameter_, x_.width) : Tensor{};
    e.kernel(y_.name, {{x}, {y, true}, {mask, true}, {bias.storage}}, [=, this, &e](bool) {
      return launch_of(y_.type, ActivateArguments{.x = e.at(x),
                                                  .bias = parameter_ != nullptr ? e.at<float>(bias) : nullptr,
                                                  .y = e.at(y),
                                                  .mask = e.at<std::uint8_t>(mask),
                                                  .rows = c_.samples * y_.pixels(),
                                                  .channels = static_cast<int>(y_.width),
                                                  .relu = relu_});
    });
  }
  void backward(Emission& e) const override {
    Storage dx = e[y_].gradient;
    if (relu_) {
      const Storage dy = dx, mask = e[y_].kept;
      dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
      e.kernel(y_.name + " gradient", {{dy}, {mask}, {dx, true}}, [=, this, &e](bool) {
        return launch_of(c_.type, ActivateBackwardArguments{.dy = e.at(dy),
                                                            .mask = e.at<std::uint8_t>(mask),
                                                            .dx = e.at(dx),
                                                            .rows = c_.samples * y_.pixels(),
                                                            .channels = static_cast<int>(y_.width)});
      });
    }
    if (parameter_ != nullptr) add_up_bias_gradient(e, dx);
    e.send_gradient(x_, dx);
  }

 private:
  void add_up_bias_gradient(Emission& e, Storage dx) const {
    const std::int64_t rows = c_.samples * x_.pixels();
    const auto columns = static_cast<int>(parameter_->count);
    const int blocks = column_sum_blocks(rows, columns);
    const std::string name = parameter_->name + " gradient";
    const Storage partial = e.buffer(name + "'s sums", std::int64_t{blocks} * columns * bytes_of(Type::fp32));
    e.kernel(name + "'s sums", {{dx}, {partial, true}}, [=, this, &e](bool) {
      return launch_of(c_.type, ColumnSumPartsArguments{.x = e.at(dx),
                                                        .partial = e.at<float>(partial),
                                                        .rows = rows,
                                                        .columns = columns,
                                                        .stride = static_cast<int>(x_.width),
                                                        .blocks = blocks});
    });
    e.kernel(name, {{partial}},
             [=, this, &e](bool accumulate) {
               return launch_of(ColumnSumsArguments{.partial = e.at<float>(partial),
                                                    .sums = e.gradient(*parameter_),
                                                    .columns = columns,
                                                    .blocks = blocks,
                                                    .accumulate = accumulate});
             },
             {parameter_->name});
  }
  const Parameter* parameter_;  // null: no bias
  bool relu_;
  const Value &x_, &y_;
};

class AddLayer : public ImageLayer {
 public:
  AddLayer(const ImageContext& context, Value& a, Value& b, Value& y) : ImageLayer(context), a_(a), b_(b), y_(y) {
    read(a);
    read(b);
  }
  void forward(Emission& e) const override {
    const Storage a = e[a_].data, b = e[b_].data, y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    const std::int64_t count = c_.samples * y_.elements();
    e.kernel(y_.name, {{a}, {b}, {y, true}}, [=, this, &e](bool) {
      return launch_of(c_.type, AddArguments{.a = e.at(a), .b = e.at(b), .y = e.at(y), .count = count});
    });
  }
  void backward(Emission& e) const override {
    const Storage dy = e[y_].gradient;
    e.send_gradient(a_, dy);
    e.send_gradient(b_, dy);
  }

 private:
  const Value &a_, &b_, &y_;
};

class PoolLayer : public ImageLayer {
 public:
  PoolLayer(const ImageContext& context, const MaxPool& node, Value& x, Value& y)
      : ImageLayer(context), average_(false), node_(node), x_(x), y_(y), joined_(context, node, x, y) {
    read(x);
  }
  PoolLayer(const ImageContext& context, const GlobalAveragePool&, Value& x, Value& y)
      : ImageLayer(context), average_(true), node_{}, x_(x), y_(y), joined_(context, node_, x, y) {
    read(x);
  }
  void list_sites(std::vector<LayerSite>& sites) const override {
    if (average_ || !joined_.possible()) return;
    const auto take = [this](std::size_t way, Choices& choices) {
      if (way == 0) choices.values[x_] = {.stored = false, .pooling = &joined_};
    };
    // Without a backward pass fusing is always better, so there is no choice.
    sites.push_back({c_.training ? joined_.site() : FusionSite{.name = y_.name, .ways = {}}, take});
  }
  void forward(Emission& e) const override {
    if (e.choices().values[x_].pooling != nullptr) return joined_.forward(e);
    const Storage x = e[x_].data, y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    if (c_.training && !average_) e[y_].kept = e.buffer(y_.name + " places", c_.samples * y_.elements());
    const Storage places = e[y_].kept;
    const Kernel pool = average_ ? Kernel::average_pool : Kernel::max_pool;
    e.kernel(y_.name, {{x}, {y, true}, {places, true}},
             [=, this, &e](bool) { return launch_of(c_.type, pool, arguments(e, x, y, places)); });
  }
  void backward(Emission& e) const override {
    if (e.choices().values[x_].pooling != nullptr) return;  // NormLayer::backward() computes this gradient
    const Storage dy = e[y_].gradient, places = e[y_].kept, dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
    const Kernel pool = average_ ? Kernel::average_pool_backward : Kernel::max_pool_backward;
    e.kernel(y_.name + " gradient", {{dy}, {places}, {dx, true}},
             [=, this, &e](bool) { return launch_of(c_.type, pool, arguments(e, dy, dx, places)); });
    e.send_gradient(x_, dx);
  }

 private:
  PoolArguments arguments(const Emission& e, Storage x, Storage y, Storage places) const {
    return {.x = e.at(x),
            .y = e.at(y),
            .places = e.at<std::uint8_t>(places),
            .samples = c_.samples,
            .height = static_cast<int>(x_.shape.height),
            .width = static_cast<int>(x_.shape.width),
            .out_height = static_cast<int>(y_.shape.height),
            .out_width = static_cast<int>(y_.shape.width),
            .channels = static_cast<int>(x_.width),
            .kernel = static_cast<int>(node_.kernel),
            .stride = static_cast<int>(node_.stride),
            .padding = static_cast<int>(node_.padding)};
  }
  bool average_;
  MaxPool node_;
  const Value &x_, &y_;
  NormPool joined_;  // the fused norm and pooling, when the program chooses them
};

class FlattenLayer : public ImageLayer {
 public:
  FlattenLayer(const ImageContext& context, Value& x, Value& y) : ImageLayer(context), x_(x), y_(y) { read(x); }
  void forward(Emission& e) const override {
    const Storage x = e[x_].data, y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    e.kernel(y_.name, {{x}, {y, true}}, [=, this, &e](bool) { return reorder(e, x, y, false); });
  }
  void backward(Emission& e) const override {
    const Storage dy = e[y_].gradient, dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
    e.kernel(y_.name + " gradient", {{dy}, {dx, true}}, [=, this, &e](bool) { return reorder(e, dy, dx, true); });
    e.send_gradient(x_, dx);
  }

 private:
  // The padding channels of x come after all others in y.
  KernelLaunch reorder(const Emission& e, Storage from, Storage to, bool inverse) const {
    return launch_of(c_.type, ReorderArguments{.from = e.at(from),
                                               .to = e.at(to),
                                               .samples = c_.samples,
                                               .spatial = static_cast<int>(x_.pixels()),
                                               .channels = static_cast<int>(x_.width),
                                               .inverse = inverse});
  }
  const Value &x_, &y_;
};

class DropoutLayer : public ImageLayer {
 public:
  DropoutLayer(const ImageContext& context, const Dropout& node, Value& x, Value& y)
      : ImageLayer(context), node_(node), x_(x), y_(y) {
    read(x);
  }
  void forward(Emission& e) const override {
    const Storage x = e[x_].data, y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    e.kernel(y_.name, {{x}, {y, true}}, [=, this, &e](bool) { return drop(e, x, y); });
  }
  void backward(Emission& e) const override {
    const Storage dy = e[y_].gradient, dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
    e.kernel(y_.name + " gradient", {{dy}, {dx, true}}, [=, this, &e](bool) { return drop(e, dy, dx); });
    e.send_gradient(x_, dx);
  }

 private:
  KernelLaunch drop(const Emission& e, Storage from, Storage to) const {
    return launch_of(c_.type, DropoutArguments{.x = e.at(from),
                                               .y = e.at(to),
                                               .state = e.step_state(),
                                               .samples = c_.samples,
                                               .length = 1,
                                               .units = x_.width,
                                               .layer = node_.layer,
                                               .probability = node_.probability});
  }
  Dropout node_;
  const Value &x_, &y_;
};

// Computes y = x W^T; an ActivationLayer adds the bias.
class DenseLayer : public ImageLayer {
 public:
  DenseLayer(const ImageContext& context, const Dense& node, Value& x, Value& y)
      : ImageLayer(context),
        name_(node.weight.substr(0, node.weight.rfind('.'))),
        parameter_(context.parameters->find(node.weight)),
        node_(node),
        x_(x),
        y_(y) {
    read(x);
  }
  void list_sites(std::vector<LayerSite>& sites) const override {
    std::vector<DnnOperation> products = {forward_operation()};
    if (c_.training) products.insert(products.end(), {data_operation(), weight_operation()});
    sites.push_back({only_way(name_, products), [](std::size_t, Choices&) {}});
  }
  void forward(Emission& e) const override {
    const Storage x = e[x_].data, y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    e.operation(name_, forward_operation(), 1,
                {{DnnRole::a, {x, 0}}, {DnnRole::b, e.weight(parameter_, layout())}, {DnnRole::y, {y, 0}, 0, true}});
  }
  void backward(Emission& e) const override {
    const Storage dy = e[y_].gradient, dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
    e.operation(name_ + " data gradient", data_operation(), 1,
                {{DnnRole::a, {dy, 0}}, {DnnRole::b, e.weight(parameter_, layout())}, {DnnRole::y, {dx, 0}, 0, true}});
    const Tensor dw = e.home().add(parameter_, layout(), Type::fp32);
    e.operation(name_ + " weight gradient", weight_operation(), 1,
                {{DnnRole::a, {dy, 0}}, {DnnRole::b, {e[x_].data, 0}}, {DnnRole::y, dw, 0, true}});
    e.home().added();
    e.send_gradient(x_, dx);
  }

 private:
  TensorLayout layout() const {
    return {.outer = node_.output, .inner = node_.input, .taps = 1, .padded_outer = y_.width, .padded_inner = x_.width};
  }
  DnnOperation product(std::int64_t m, std::int64_t k, std::int64_t n, Type result) const {
    DnnOperation o{.kind = DnnKind::matmul, .type = c_.type, .math = c_.math};
    o.m = m;
    o.k = k;
    o.n = n;
    o.result = result;
    return o;
  }
  DnnOperation forward_operation() const {
    DnnOperation o = product(c_.samples, x_.width, y_.width, y_.type);
    o.transposed_b = true;
    return o;
  }
  DnnOperation data_operation() const { return product(c_.samples, y_.width, x_.width, c_.type); }
  DnnOperation weight_operation() const {
    DnnOperation o = product(y_.width, c_.samples, x_.width, Type::fp32);
    o.transposed_a = true;
    return o;
  }
  std::string name_;
  const Parameter& parameter_;
  const Dense node_;
  const Value &x_, &y_;
};

}  // namespace

std::unique_ptr<ImageLayer> make_activation(const ImageContext& context, const std::string& bias, bool relu, Value& x,
                                            Value& y) {
  return std::make_unique<ActivationLayer>(context, bias, relu, x, y);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const PartInput&, Value& y) {
  return std::make_unique<PartInputLayer>(context, y);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const PartOutput&, Value& x) {
  return std::make_unique<PartOutputLayer>(context, x);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Add&, Value& a, Value& b, Value& y) {
  return std::make_unique<AddLayer>(context, a, b, y);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const MaxPool& node, Value& x, Value& y) {
  return std::make_unique<PoolLayer>(context, node, x, y);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const GlobalAveragePool& node, Value& x, Value& y) {
  return std::make_unique<PoolLayer>(context, node, x, y);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Flatten&, Value& x, Value& y) {
  return std::make_unique<FlattenLayer>(context, x, y);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Dropout& node, Value& x, Value& y) {
  return std::make_unique<DropoutLayer>(context, node, x, y);
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Dense& node, Value& x, Value& y) {
  return std::make_unique<DenseLayer>(context, node, x, y);
}

}  // namespace ringtrain::cuda
