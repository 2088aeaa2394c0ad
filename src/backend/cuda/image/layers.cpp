#include "backend/cuda/image/layers.h"

#include "base/error.h"

namespace ringtrain::cuda {

void PixelLayer::forward() {
  y_.data = c_.buffer(y_.name, c_.bytes(y_));
  ImageInputArguments a{.pixels = nullptr,
                        .output = nullptr,
                        .pixel_count = c_.samples * y_.pixels(),
                        .channels = static_cast<int>(node_.channels),
                        .padded = static_cast<int>(y_.width),
                        .scale = {},
                        .shift = {}};
  for (std::size_t c = 0; c < node_.mean.size(); ++c) {
    a.scale[c] = static_cast<float>(1 / (255 * node_.std[c]));
    a.shift[c] = static_cast<float>(-node_.mean[c] / node_.std[c]);
  }
  c_.program->add_input_command(y_.name, {{y_.data, true}},
                                [this, a](Device& device, Stream stream, const std::uint8_t* pixels) {
                                  ImageInputArguments now = a;
                                  now.pixels = pixels;
                                  now.output = c_.at(y_.data);
                                  device.launch(launch_of(c_.type, now), stream);
                                });
}

ActivationLayer::ActivationLayer(const ImageContext& context, const std::string& bias, bool relu, Value& x, Value& y)
    : ImageLayer(context),
      parameter_(bias.empty() ? nullptr : &context.parameters->find(bias)),
      relu_(relu),
      x_(x),
      y_(y) {
  read(x);
  if (parameter_ != nullptr) bias_ = c_.vectors->add(*parameter_, TensorLayout::vector(parameter_->count, x.width));
}

void ActivationLayer::forward() {
  y_.data = x_.consumers == 1 ? x_.data : c_.buffer(y_.name, c_.bytes(y_));
  if (c_.training && relu_) mask_ = c_.buffer(y_.name + " mask", c_.samples * y_.elements() / 8);
  c_.kernel(y_.name, {{x_.data}, {y_.data, true}, {mask_, true}, {bias_.storage}}, [this](bool) {
    return launch_of(y_.type, ActivateArguments{.x = c_.at(x_.data),
                                                .bias = parameter_ != nullptr ? c_.at<float>(bias_) : nullptr,
                                                .y = c_.at(y_.data),
                                                .mask = c_.at<std::uint8_t>(mask_),
                                                .rows = c_.samples * y_.pixels(),
                                                .channels = static_cast<int>(y_.width),
                                                .relu = relu_});
  });
}

void ActivationLayer::backward() {
  Storage dx = y_.gradient;
  if (relu_) {
    const Storage dy = dx;
    dx = c_.buffer(x_.name + " gradient", c_.bytes(x_));
    c_.kernel(y_.name + " gradient", {{dy}, {mask_}, {dx, true}}, [=, this](bool) {
      return launch_of(c_.type, ActivateBackwardArguments{.dy = c_.at(dy),
                                                          .mask = c_.at<std::uint8_t>(mask_),
                                                          .dx = c_.at(dx),
                                                          .rows = c_.samples * y_.pixels(),
                                                          .channels = static_cast<int>(y_.width)});
    });
  }
  if (parameter_ != nullptr)
    c_.kernel(parameter_->name + " gradient", {{dx}},
              [=, this](bool accumulate) {
                return launch_of(c_.type, ColumnSumsArguments{.x = c_.at(dx),
                                                              .sums = c_.program->gradient(*parameter_),
                                                              .rows = c_.samples * x_.pixels(),
                                                              .columns = static_cast<int>(parameter_->count),
                                                              .stride = static_cast<int>(x_.width),
                                                              .accumulate = accumulate});
              },
              {parameter_->name});
  c_.send_gradient(x_, dx);
}

AddLayer::AddLayer(const ImageContext& context, Value& a, Value& b, Value& y)
    : ImageLayer(context), a_(a), b_(b), y_(y) {
  read(a);
  read(b);
}

void AddLayer::forward() {
  y_.data = c_.buffer(y_.name, c_.bytes(y_));
  c_.kernel(y_.name, {{a_.data}, {b_.data}, {y_.data, true}}, [this](bool) {
    const std::int64_t count = c_.samples * y_.elements();
    return launch_of(c_.type,
                     AddArguments{.a = c_.at(a_.data), .b = c_.at(b_.data), .y = c_.at(y_.data), .count = count});
  });
}

void AddLayer::backward() {
  c_.send_gradient(a_, y_.gradient);
  c_.send_gradient(b_, y_.gradient);
}

PoolLayer::PoolLayer(const ImageContext& context, const MaxPool& node, Value& x, Value& y)
    : ImageLayer(context), average_(false), node_(node), x_(x), y_(y) {
  read(x);
}
PoolLayer::PoolLayer(const ImageContext& context, const GlobalAveragePool&, Value& x, Value& y)
    : ImageLayer(context), average_(true), node_{}, x_(x), y_(y) {
  read(x);
}

PoolArguments PoolLayer::arguments(const void* x, void* y) const {
  return {.x = x,
          .y = y,
          .places = c_.at<std::uint8_t>(places_),
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

void PoolLayer::forward() {
  y_.data = c_.buffer(y_.name, c_.bytes(y_));
  if (c_.training && !average_) places_ = c_.buffer(y_.name + " places", c_.samples * y_.elements());
  const Kernel pool = average_ ? Kernel::average_pool : Kernel::max_pool;
  c_.kernel(y_.name, {{x_.data}, {y_.data, true}, {places_, true}},
            [=, this](bool) { return launch_of(c_.type, pool, arguments(c_.at(x_.data), c_.at(y_.data))); });
}

void PoolLayer::backward() {
  const Storage dx = c_.buffer(x_.name + " gradient", c_.bytes(x_));
  const Kernel pool = average_ ? Kernel::average_pool_backward : Kernel::max_pool_backward;
  c_.kernel(y_.name + " gradient", {{y_.gradient}, {places_}, {dx, true}},
            [=, this](bool) { return launch_of(c_.type, pool, arguments(c_.at(y_.gradient), c_.at(dx))); });
  c_.send_gradient(x_, dx);
}

FlattenLayer::FlattenLayer(const ImageContext& context, Value& x, Value& y) : ImageLayer(context), x_(x), y_(y) {
  read(x);
}

// Channels that pad x lie behind all others in y.
KernelLaunch FlattenLayer::reorder(Storage from, Storage to, bool inverse) const {
  return launch_of(c_.type, ReorderArguments{.from = c_.at(from),
                                             .to = c_.at(to),
                                             .samples = c_.samples,
                                             .spatial = static_cast<int>(x_.pixels()),
                                             .channels = static_cast<int>(x_.width),
                                             .inverse = inverse});
}
void FlattenLayer::forward() {
  y_.data = c_.buffer(y_.name, c_.bytes(y_));
  c_.kernel(y_.name, {{x_.data}, {y_.data, true}}, [this](bool) { return reorder(x_.data, y_.data, false); });
}
void FlattenLayer::backward() {
  const Storage dx = c_.buffer(x_.name + " gradient", c_.bytes(x_));
  c_.kernel(y_.name + " gradient", {{y_.gradient}, {dx, true}},
            [=, this](bool) { return reorder(y_.gradient, dx, true); });
  c_.send_gradient(x_, dx);
}

DropoutLayer::DropoutLayer(const ImageContext& context, const Dropout& node, Value& x, Value& y)
    : ImageLayer(context), node_(node), x_(x), y_(y) {
  read(x);
}
KernelLaunch DropoutLayer::drop(Storage from, Storage to) const {
  return launch_of(c_.type, DropoutArguments{.x = c_.at(from),
                                             .y = c_.at(to),
                                             .state = c_.program->step_state(),
                                             .samples = c_.samples,
                                             .length = 1,
                                             .units = x_.width,
                                             .layer = node_.layer,
                                             .probability = node_.probability});
}
void DropoutLayer::forward() {
  y_.data = c_.buffer(y_.name, c_.bytes(y_));
  c_.kernel(y_.name, {{x_.data}, {y_.data, true}}, [this](bool) { return drop(x_.data, y_.data); });
}
void DropoutLayer::backward() {
  const Storage dx = c_.buffer(x_.name + " gradient", c_.bytes(x_));
  c_.kernel(y_.name + " gradient", {{y_.gradient}, {dx, true}}, [=, this](bool) { return drop(y_.gradient, dx); });
  c_.send_gradient(x_, dx);
}

DenseLayer::DenseLayer(const ImageContext& context, const Dense& node, Value& x, Value& y)
    : ImageLayer(context),
      name_(node.weight.substr(0, node.weight.rfind('.'))),
      parameter_(context.parameters->find(node.weight)),
      layout_{.outer = node.output, .inner = node.input, .taps = 1, .padded_outer = y.width, .padded_inner = x.width},
      x_(x),
      y_(y) {
  read(x);
  weight_ = c_.weights->add(parameter_, layout_);
}

DnnOperation DenseLayer::product(std::int64_t m, std::int64_t k, std::int64_t n, Type result) const {
  DnnOperation o{.kind = DnnKind::matmul, .type = c_.type, .math = c_.math};
  o.m = m;
  o.k = k;
  o.n = n;
  o.result = result;
  return o;
}

void DenseLayer::forward() {
  y_.data = c_.buffer(y_.name, c_.bytes(y_));
  DnnOperation o = product(c_.samples, x_.width, y_.width, y_.type);
  o.transposed_b = true;
  c_.operation(name_, o, 1, {{DnnRole::a, {x_.data, 0}}, {DnnRole::b, weight_}, {DnnRole::y, {y_.data, 0}, 0, true}});
}

void DenseLayer::backward() {
  const Storage dy = y_.gradient, dx = c_.buffer(x_.name + " gradient", c_.bytes(x_));
  c_.operation(name_ + " data gradient", product(c_.samples, y_.width, x_.width, c_.type), 1,
               {{DnnRole::a, {dy, 0}}, {DnnRole::b, weight_}, {DnnRole::y, {dx, 0}, 0, true}});
  DnnOperation o = product(y_.width, c_.samples, x_.width, Type::fp32);
  o.transposed_a = true;
  const Tensor dw = c_.home->add(parameter_, layout_, Type::fp32);
  c_.operation(name_ + " weight gradient", o, 1,
               {{DnnRole::a, {dy, 0}}, {DnnRole::b, {x_.data, 0}}, {DnnRole::y, dw, 0, true}});
  c_.home->added();
  c_.send_gradient(x_, dx);
}

LossLayer::LossLayer(const ImageContext& context, const CrossEntropy& node, Value& logits)
    : ImageLayer(context), node_(node), logits_(logits) {
  read(logits);
}

void LossLayer::forward() {
  const int blocks = loss_blocks(c_.samples);
  const std::int64_t rows = c_.samples;
  const Storage partial = c_.buffer("partial sums of the loss", blocks * static_cast<std::int64_t>(sizeof(PassSums)));
  // Zeros between launches: memory starts as zeros.
  const Storage finished = c_.program->schedule().lasting("blocks of the loss that are done", sizeof(unsigned));
  if (c_.training) logits_.gradient = c_.buffer(logits_.name + " gradient", rows * logits_.width * bytes_of(c_.type));
  const Storage gradient = logits_.gradient;
  c_.kernel("loss", {{logits_.data}, {partial, true}, {finished, true}, {gradient, true}}, [=, this](bool) {
    return launch_of(
        c_.type, CrossEntropyArguments{.logits = c_.at<float>(logits_.data),
                                       .targets = c_.program->targets(),
                                       .gradient = c_.at(gradient),
                                       .partial = c_.at<PassSums>(partial),
                                       .sums = c_.program->sums(),
                                       .finished = c_.at<unsigned>(finished),
                                       .state = c_.program->step_state(),
                                       .samples = rows,
                                       .length = 1,
                                       .classes = static_cast<int>(node_.classes),
                                       .stride = static_cast<int>(logits_.width),
                                       .blocks = blocks,
                                       .label_smoothing = static_cast<float>(c_.training ? node_.label_smoothing : 0),
                                       .top5 = true});
  });
}

}  // namespace ringtrain::cuda
