#include "backend/cuda/image/layers.h"

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

namespace {

// These layers are the two ends of a part of a model. A value crosses an end in its memory layout:
// [samples][pixels][width].
class PartInputLayer : public ImageLayer {
 public:
  PartInputLayer(const ImageContext& context, Value& y) : ImageLayer(context), y_(y) {}
  void forward(Emission& e) const override { e[y_].data = e.program().add_activations_in(c_.bytes(y_)); }
  void backward(Emission& e) const override { e.program().add_gradients_out(e[y_].gradient); }

 private:
  const Value& y_;
};
class PartOutputLayer : public ImageLayer {
 public:
  PartOutputLayer(const ImageContext& context, Value& x) : ImageLayer(context), x_(x) { read(x); }
  void forward(Emission& e) const override { e.program().add_activations_out(e[x_].data); }
  void backward(Emission& e) const override { e.send_gradient(x_, e.program().add_gradients_in(c_.bytes(x_))); }

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
    if (parameter_ != nullptr)
      e.program().add_bias_gradient(parameter_->name + " gradient", *parameter_, dx, c_.samples * x_.pixels(),
                                    x_.width);
    e.send_gradient(x_, dx);
  }

 private:
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
    sites.push_back({c_.training ? joined_.site() : FusionSite{.name = y_.name}, take});
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
    e.program().add_dropout(y_.name, node_, x_.width, x, y);
  }
  void backward(Emission& e) const override {
    const Storage dy = e[y_].gradient, dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
    e.program().add_dropout(y_.name + " gradient", node_, x_.width, dy, dx);
    e.send_gradient(x_, dx);
  }

 private:
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
    const DenseProducts all = products();
    std::vector<DnnOperation> asked = {all.forward};
    if (c_.training) asked.insert(asked.end(), {all.data_gradient, all.weight_gradient});
    sites.push_back({only_way(name_, asked), [](std::size_t, Choices&) {}});
  }
  void forward(Emission& e) const override {
    const Storage x = e[x_].data, y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    e.operation(name_, products().forward, 1,
                {{DnnRole::a, {x, 0}}, {DnnRole::b, e.weight(parameter_, layout())}, {DnnRole::y, {y, 0}, 0, true}});
  }
  void backward(Emission& e) const override {
    const Storage dy = e[y_].gradient, dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
    e.operation(name_ + " data gradient", products().data_gradient, 1,
                {{DnnRole::a, {dy, 0}}, {DnnRole::b, e.weight(parameter_, layout())}, {DnnRole::y, {dx, 0}, 0, true}});
    const Tensor dw = e.home().add(parameter_, layout(), Type::fp32);
    e.operation(name_ + " weight gradient", products().weight_gradient, 1,
                {{DnnRole::a, {dy, 0}}, {DnnRole::b, {e[x_].data, 0}}, {DnnRole::y, dw, 0, true}});
    e.home().added();
    e.send_gradient(x_, dx);
  }

 private:
  TensorLayout layout() const {
    return {.outer = node_.output, .inner = node_.input, .taps = 1, .padded_outer = y_.width, .padded_inner = x_.width};
  }
  DenseProducts products() const { return dense_products(c_.type, c_.math, c_.samples, x_.width, y_.width, y_.type); }
  std::string name_;
  const Parameter& parameter_;
  const Dense node_;
  const Value &x_, &y_;
};

class LossLayer : public ImageLayer {
 public:
  LossLayer(const ImageContext& context, const CrossEntropy& node, Value& logits)
      : ImageLayer(context), node_(node), logits_(logits) {
    read(logits);
  }
  void forward(Emission& e) const override {
    ValueStorages& logits = e[logits_];
    logits.gradient = e.program().add_loss("loss", node_, {logits.data, node_.classes, logits_.width},
                                           logits_.name + " gradient", true);
  }
  void backward(Emission&) const override {}

 private:
  CrossEntropy node_;
  const Value& logits_;
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
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const CrossEntropy& node, Value& x) {
  return std::make_unique<LossLayer>(context, node, x);
}

}  // namespace ringtrain::cuda
