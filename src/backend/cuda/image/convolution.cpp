#include "backend/cuda/image/convolution.h"

#include <algorithm>

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
          .r = x_.windows ? 1 : node_.kernel,
          .stride = x_.windows ? 1 : node_.stride,
          .padding = x_.windows ? 0 : node_.padding};
}
// CUTLASS's kernels process all groups of the norm in one launch.
void ConvolutionLayer::take_all_groups(DnnOperation& o) const {
  o.engine = Engine::hopper;
  o.n = c_.samples;
  o.groups = c_.groups();
}
// A launch of cuDNN with a fused norm processes one group.
DnnOperation ConvolutionLayer::forward_operation(const ConvolutionPlan& plan) const {
  const bool fused_sums = plan.sums != SumsWay::separate;
  DnnOperation o = operation(DnnKind::convolution, fused_sums || plan.way.prologue != Prologue::none);
  o.prologue = plan.way.prologue;
  o.epilogue = fused_sums ? Epilogue::sums : Epilogue::none;
  if (plan.sums == SumsWay::hopper) take_all_groups(o);
  return o;
}
DnnOperation ConvolutionLayer::data_operation(const ConvolutionPlan& plan) const {
  DnnOperation o = operation(DnnKind::data_gradient, plan.way.brings_sums());
  o.epilogue = plan.way.data_epilogue;
  if (plan.way.data_engine == Engine::hopper) take_all_groups(o);
  return o;
}
DnnOperation ConvolutionLayer::weight_operation(const ConvolutionPlan& plan) const {
  DnnOperation o = operation(DnnKind::weight_gradient, false);
  o.prologue = plan.way.weight_prologue;
  if (o.prologue == Prologue::none) o.result = plan.weight_gradient;
  o.engine = o.prologue != Prologue::none ? Engine::specialised : plan.weight_engine;
  return o;
}

std::vector<DnnOperation> ConvolutionLayer::operations(const ConvolutionPlan& plan) const {
  std::vector<DnnOperation> all = {forward_operation(plan)};
  if (c_.training && x_.needs_gradient) all.push_back(data_operation(plan));
  if (c_.training) all.push_back(weight_operation(plan));
  return all;
}

bool ConvolutionLayer::plain_plans_exist() const {
  return std::ranges::all_of(operations({}), [&](const DnnOperation& o) { return c_.device->plan(o) != nullptr; });
}

void ConvolutionLayer::list_sites(std::vector<LayerSite>& sites) const {
  sites.push_back(site_of(c_, *this));
}

void ConvolutionLayer::take(const ConvolutionPlan& plan, Choices& choices) const {
  choices.convolutions[*this] = plan;
  // x may have several readers. Only the one that sends its gradient last decides how x and the gradient of x are made.
  if (x_.needs_gradient && x_.first_reader == this)
    choices.values[x_] = {.stored = plan.way.prologue == Prologue::none, .sums_come = plan.way.brings_sums()};
  if (y_.statistics != nullptr) choices.norms[*y_.statistics].sums_come = plan.sums != SumsWay::separate;
  for (const DnnOperation& o : {forward_operation(plan), weight_operation(plan)})
    if (wants_factors_as_type(o)) choices.norms[x_.norm->norm()].factors_as_type = true;
}

TensorLayout ConvolutionLayer::layout() const {
  return {.outer = node_.output,
          .inner = node_.input,
          .taps = node_.kernel * node_.kernel,
          .padded_outer = y_.width,
          .padded_inner = x_.width,
          .windows = x_.windows};
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
// Adds the affine form of the norm that makes x, per channel and group.
void ConvolutionLayer::add_factors(Emission& e, std::vector<Operand>& operands, const DnnOperation& o) const {
  const NormStatistics& norm = x_.norm->norm();
  const bool as_type = wants_factors_as_type(o);
  const std::int64_t row = x_.width * bytes_of(as_type ? c_.type : Type::fp32);
  operands.push_back({DnnRole::scale, as_type ? norm.scale_as_type(e) : norm.scale(e), row});
  operands.push_back({DnnRole::bias, as_type ? norm.bias_as_type(e) : norm.bias(e), row});
}

void ConvolutionLayer::forward(Emission& e) const {
  const ConvolutionPlan& plan = e.choices().convolutions[*this];
  const DnnOperation o = forward_operation(plan);
  const Storage y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
  std::vector<Operand> operands = {{DnnRole::w, e.weight(parameter_, layout())}, of_values(DnnRole::y, y, y_, o, true)};
  if (plan.way.prologue == Prologue::none) {
    operands.push_back(of_values(DnnRole::x, e[x_].data, x_, o));
  } else {
    operands.push_back(of_values(DnnRole::x, e[x_.norm->norm().x()].data, x_, o));
    add_factors(e, operands, o);
  }
  if (plan.sums != SumsWay::separate) {
    const Storage sums = y_.statistics->make_sums(e, 1);
    const std::int64_t row = y_.width * bytes_of(Type::fp32);
    operands.push_back({DnnRole::sum, {sums, 0}, 2 * row, true});
    operands.push_back({DnnRole::sum_other, {sums, row}, 2 * row, true});
  }
  e.operation(name_, o, launches(o), operands);
}

void ConvolutionLayer::backward(Emission& e) const {
  const ConvolutionWay& way = e.choices().convolutions[*this].way;
  const Storage dy = e[y_].gradient;
  // The weight gradient reads its input from memory. When only the forward prologue has computed that input, the
  // input gets a buffer here.
  Storage input = e[x_].data;
  if (way.weight_prologue != Prologue::none)
    input = e[x_.norm->norm().x()].data;
  else if (way.prologue != Prologue::none)
    input = e.buffer(x_.name, c_.bytes(x_));
  if (x_.needs_gradient) data_gradient(e, dy, input);
  if (way.makes_input_again()) x_.norm->apply(e, x_.name, input, -1);
  weight_gradient(e, dy, input);
}

void ConvolutionLayer::data_gradient(Emission& e, Storage dy, Storage again) const {
  const ConvolutionPlan& plan = e.choices().convolutions[*this];
  const ConvolutionWay& way = plan.way;
  const DnnOperation o = data_operation(plan);
  const Storage dx = e.buffer(x_.name + " gradient", c_.bytes(x_));
  ValueStorages& x = e[x_];
  std::vector<Operand> operands = {of_values(DnnRole::dy, dy, y_, o),
                                   {DnnRole::w, e.weight(parameter_, layout())},
                                   of_values(DnnRole::dx, dx, x_, o, true)};
  if (way.adds()) operands.push_back(of_values(DnnRole::shortcut, x.gradient, x_, o));
  if (way.brings_sums()) {
    const NormStatistics& norm = x_.norm->norm();
    const std::int64_t row = norm.row_bytes();
    x.sums = e.buffer(norm.name() + " gradient's sums", c_.groups() * 2 * row);
    operands.push_back(of_values(DnnRole::norm_input, e[norm.x()].data, x_, o));
    operands.push_back({DnnRole::sum, {x.sums, 0}, 2 * row, true});
    operands.push_back({DnnRole::sum_other, {x.sums, row}, 2 * row, true});
    if (way.data_epilogue == Epilogue::add_relu_sums)
      operands.push_back(of_values(DnnRole::output, x.data, x_, o));
    else
      add_factors(e, operands, o);
    if (way.data_epilogue == Epilogue::relu_sums_output)
      operands.push_back(of_values(DnnRole::output, again, x_, o, true));
  }
  e.operation(name_ + " data gradient", o, launches(o), operands);
  if (way.adds())
    x.gradient = dx;
  else
    e.send_gradient(x_, dx);
}

void ConvolutionLayer::weight_gradient(Emission& e, Storage dy, Storage input) const {
  const ConvolutionPlan& plan = e.choices().convolutions[*this];
  const DnnOperation o = weight_operation(plan);
  const Tensor dw = e.home().add(parameter_, layout(), o.result);
  std::vector<Operand> operands = {
      of_values(DnnRole::x, input, x_, o), of_values(DnnRole::dy, dy, y_, o), {DnnRole::dw, dw, 0, true}};
  if (plan.way.weight_prologue != Prologue::none) add_factors(e, operands, o);
  e.operation(name_ + " weight gradient", o, 1, operands);
  e.home().added();
}

}  // namespace ringtrain::cuda
