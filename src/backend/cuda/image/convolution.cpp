#include "backend/cuda/image/convolution.h"

#include <algorithm>

#include "backend/cuda/image/fusions.h"
#include "backend/cuda/image/norm.h"

namespace ringtrain::cuda {

ConvolutionLayer::ConvolutionLayer(const ImageContext& context, const Convolution& node, Value& x, Value& y)
    : ImageLayer(context),
      node_(node),
      name_(node.weight.substr(0, node.weight.rfind('.'))),
      parameter_(context.parameters->find(node.weight)),
      x_(x),
      y_(y) {
  read(x);
}

DnnOperation ConvolutionLayer::operation(DnnKind kind, bool by_group) const {
  return {.kind = kind,
          .type = c_.type,
          .math = c_.math,
          .n = by_group ? c_.group : c_.samples,
          .c = x_.width,
          .h = x_.shape.height,
          .w = x_.shape.width,
          .k = y_.width,
          .r = node_.kernel,
          .stride = node_.stride,
          .padding = node_.padding};
}
// A fused norm has one group per launch.
DnnOperation ConvolutionLayer::forward_operation(const ConvolutionWay& way, SumsWay sums) const {
  const bool fused_sums = sums != SumsWay::separate;
  DnnOperation o = operation(DnnKind::convolution, fused_sums || way.prologue != Prologue::none);
  o.prologue = way.prologue;
  o.epilogue = fused_sums ? Epilogue::sums : Epilogue::none;
  o.specialised = sums == SumsWay::specialised;
  return o;
}
DnnOperation ConvolutionLayer::data_operation(const ConvolutionWay& way) const {
  DnnOperation o = operation(DnnKind::data_gradient, way.brings_sums());
  o.epilogue = way.data_epilogue;
  return o;
}
DnnOperation ConvolutionLayer::weight_operation(const ConvolutionWay& way) const {
  DnnOperation o = operation(DnnKind::weight_gradient, false);
  o.prologue = way.weight_prologue;
  if (way.weight_prologue == Prologue::none) o.result = weight_gradient_type_;
  o.specialised = way.weight_prologue != Prologue::none;
  return o;
}
DnnOperation ConvolutionLayer::weight_operation(Type result) const {
  DnnOperation o = operation(DnnKind::weight_gradient, false);
  o.result = result;
  return o;
}

bool ConvolutionLayer::plain_plans_exist() const {
  const bool forward = c_.device->plan(forward_operation({}, SumsWay::separate)) != nullptr;
  if (!c_.training || !forward) return forward;
  return c_.device->plan(weight_operation({})) != nullptr &&
         (!x_.needs_gradient || c_.device->plan(data_operation({})) != nullptr);
}

void ConvolutionLayer::choose() {
  layout_ = {.outer = node_.output,
             .inner = node_.input,
             .taps = node_.kernel * node_.kernel,
             .padded_outer = y_.width,
             .padded_inner = x_.width};
  weight_ = c_.weights->add(parameter_, layout_);
  if (!c_.training) return;
  weight_gradient_type_ = choose_weight_gradient_type(c_, *this, name_);
  if (x_.needs_gradient) {
    way_ = choose_convolution_way(c_, *this, name_, x_, y_);
    x_.stored = way_.prologue == Prologue::none;
    x_.sums_come = way_.brings_sums();
  }
  if (y_.statistics != nullptr) {
    sums_ = choose_sums_way(c_, *this, name_, way_, y_);
    if (sums_ != SumsWay::separate) y_.statistics->take_sums_of_convolution();
  }
  for (const DnnOperation& o : {forward_operation(way_, sums_), weight_operation(way_)})
    if (wants_factors_as_type(o)) x_.norm->norm().write_factors_as_type();
}

Operand ConvolutionLayer::of_values(DnnRole role, Storage storage, const Value& shape, const DnnOperation& o,
                                    bool write) const {
  return {role, {storage, 0}, c_.bytes(shape) / launches(o), write};
}

bool ConvolutionLayer::wants_factors_as_type(const DnnOperation& o) const {
  const std::vector<DnnTensor> tensors = o.tensors();
  return c_.type != Type::fp32 && std::any_of(tensors.begin(), tensors.end(), [&](const DnnTensor& tensor) {
           return tensor.role == DnnRole::scale && tensor.type == c_.type;
         });
}
// The affine form of the norm that makes x, per channel and group.
void ConvolutionLayer::add_factors(std::vector<Operand>& operands, const DnnOperation& o) const {
  const NormStatistics& norm = x_.norm->norm();
  const bool as_type = wants_factors_as_type(o);
  const std::int64_t row = x_.width * bytes_of(as_type ? c_.type : Type::fp32);
  operands.push_back({DnnRole::scale, as_type ? norm.scale_as_type() : norm.scale(), row});
  operands.push_back({DnnRole::bias, as_type ? norm.bias_as_type() : norm.bias(), row});
}

void ConvolutionLayer::forward() {
  y_.data = c_.buffer(y_.name, c_.bytes(y_));
  const DnnOperation o = forward_operation(way_, sums_);
  std::vector<Operand> operands = {{DnnRole::w, weight_}, of_values(DnnRole::y, y_.data, y_, o, true)};
  if (way_.prologue == Prologue::none) {
    operands.push_back(of_values(DnnRole::x, x_.data, x_, o));
  } else {
    operands.push_back(of_values(DnnRole::x, x_.norm->norm().x().data, x_, o));
    add_factors(operands, o);
  }
  if (sums_ != SumsWay::separate) {
    const Storage sums = y_.statistics->make_sums(1);
    const std::int64_t row = y_.width * bytes_of(Type::fp32);
    operands.push_back({DnnRole::sum, {sums, 0}, 2 * row, true});
    operands.push_back({DnnRole::sum_other, {sums, row}, 2 * row, true});
  }
  c_.operation(name_, o, launches(o), std::move(operands));
}

void ConvolutionLayer::backward() {
  const Storage dy = y_.gradient;
  // What the prologue made on the way has to lie in memory for the weight gradient.
  Storage input = x_.data;
  if (way_.weight_prologue != Prologue::none)
    input = x_.norm->norm().x().data;
  else if (!x_.stored)
    input = c_.buffer(x_.name, c_.bytes(x_));
  if (x_.needs_gradient) data_gradient(dy, input);
  if (way_.makes_input_again()) x_.norm->apply(x_.name, input, -1);
  weight_gradient(dy, input);
}

void ConvolutionLayer::data_gradient(Storage dy, Storage again) {
  const DnnOperation o = data_operation(way_);
  const Storage dx = c_.buffer(x_.name + " gradient", c_.bytes(x_));
  std::vector<Operand> operands = {
      of_values(DnnRole::dy, dy, y_, o), {DnnRole::w, weight_}, of_values(DnnRole::dx, dx, x_, o, true)};
  if (way_.adds()) operands.push_back(of_values(DnnRole::shortcut, x_.gradient, x_, o));
  if (way_.brings_sums()) {
    const NormStatistics& norm = x_.norm->norm();
    const std::int64_t row = norm.row_bytes();
    x_.sums = c_.buffer(norm.name() + " gradient's sums", c_.groups() * 2 * row);
    operands.push_back(of_values(DnnRole::norm_input, norm.x().data, x_, o));
    operands.push_back({DnnRole::sum, {x_.sums, 0}, 2 * row, true});
    operands.push_back({DnnRole::sum_other, {x_.sums, row}, 2 * row, true});
    if (way_.data_epilogue == Epilogue::add_relu_sums)
      operands.push_back(of_values(DnnRole::output, x_.data, x_, o));
    else
      add_factors(operands, o);
    if (way_.data_epilogue == Epilogue::relu_sums_output)
      operands.push_back(of_values(DnnRole::output, again, x_, o, true));
  }
  c_.operation(name_ + " data gradient", o, launches(o), std::move(operands));
  if (way_.adds())
    x_.gradient = dx;
  else
    c_.send_gradient(x_, dx);
}

void ConvolutionLayer::weight_gradient(Storage dy, Storage input) {
  const DnnOperation o = weight_operation(way_);
  const Tensor dw = c_.home->add(parameter_, layout_, o.result);
  std::vector<Operand> operands = {
      of_values(DnnRole::x, input, x_, o), of_values(DnnRole::dy, dy, y_, o), {DnnRole::dw, dw, 0, true}};
  if (way_.weight_prologue != Prologue::none) add_factors(operands, o);
  c_.operation(name_ + " weight gradient", o, 1, std::move(operands));
  c_.home->added();
}

}  // namespace ringtrain::cuda
