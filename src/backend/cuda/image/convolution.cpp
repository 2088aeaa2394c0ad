// A convolution of an image network, and the ways to compute it. A way is a plan for the three products: the
// convolution, the data gradient and the weight gradient. It says how the input is read, how the gradient is passed on,
// which kernel makes the sums for the norm after the convolution, and the library and the type of the weight gradient.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/hopper/plans.h"
#include "backend/cuda/image/layers.h"
#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain::cuda {

// ConvolutionLayer is a convolution without its bias. It has a forward pass, a data gradient and a weight gradient,
// with the operations fused to them.
class ConvolutionLayer : public ImageLayer {
 public:
  ConvolutionLayer(const ImageContext& context, const Convolution& node, Value& x, Value& y)
      : ImageLayer(context),
        node_(node),
        name_(node.weight.substr(0, node.weight.rfind('.'))),
        parameter_(context.parameters->find(node.weight)),
        x_(x),
        y_(y) {
    read(x);
  }
  void list_sites(std::vector<LayerSite>& sites) const override;
  void forward(Emission& e) const override {
    const ConvolutionPlan& plan = e.choices().convolutions[*this];
    const DnnOperation o = forward_operation(plan);
    const Storage y = e[y_].data = e.buffer(y_.name, c_.bytes(y_));
    std::vector<Operand> operands = {{DnnRole::w, e.weight(parameter_, layout())},
                                     of_values(DnnRole::y, y, y_, o, true)};
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
  void backward(Emission& e) const override {
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

  const std::string& name() const { return name_; }
  const Value& x() const { return x_; }
  const Value& y() const { return y_; }
  std::int64_t stride() const { return node_.stride; }
  // Returns whether the device has plans for the operations without fusion.
  bool plain_plans_exist() const {
    return std::ranges::all_of(operations({}), [&](const DnnOperation& o) { return c_.device->plan(o) != nullptr; });
  }

  // These return the operations of a plan. They cover all samples of the micro-batch or those of one group of batch
  // norm. A launch of cuDNN with a fused norm processes one group.
  DnnOperation forward_operation(const ConvolutionPlan& plan) const {
    const bool fused_sums = plan.sums != SumsWay::separate;
    DnnOperation o = operation(DnnKind::convolution, fused_sums || plan.way.prologue != Prologue::none);
    o.prologue = plan.way.prologue;
    o.epilogue = fused_sums ? Epilogue::sums : Epilogue::none;
    if (plan.sums == SumsWay::hopper) take_all_groups(o);
    return o;
  }
  DnnOperation data_operation(const ConvolutionPlan& plan) const {
    DnnOperation o = operation(DnnKind::data_gradient, plan.way.brings_sums());
    o.epilogue = plan.way.data_epilogue;
    if (plan.way.data_engine == Engine::hopper) take_all_groups(o);
    return o;
  }
  DnnOperation weight_operation(const ConvolutionPlan& plan) const {
    DnnOperation o = operation(DnnKind::weight_gradient, false);
    o.prologue = plan.way.weight_prologue;
    if (o.prologue == Prologue::none) o.result = plan.weight.type;
    o.engine = o.prologue != Prologue::none ? Engine::specialised : plan.weight.engine;
    return o;
  }
  // Returns those of the three that the layer needs.
  std::vector<DnnOperation> operations(const ConvolutionPlan& plan) const {
    std::vector<DnnOperation> all = {forward_operation(plan)};
    if (c_.training && x_.needs_gradient) all.push_back(data_operation(plan));
    if (c_.training) all.push_back(weight_operation(plan));
    return all;
  }
  // Records the plan, and what it means for the values and norms around the layer.
  void take(const ConvolutionPlan& plan, Choices& choices) const {
    choices.convolutions[*this] = plan;
    // x may have several readers. Only the one that sends its gradient last decides how x and the gradient of x are
    // made.
    if (x_.needs_gradient && x_.first_reader == this)
      choices.values[x_] = {.stored = plan.way.prologue == Prologue::none, .sums_come = plan.way.brings_sums()};
    if (y_.statistics != nullptr) choices.norms[*y_.statistics].sums_come = plan.sums != SumsWay::separate;
    for (const DnnOperation& o : {forward_operation(plan), weight_operation(plan)})
      if (wants_factors_as_type(o)) choices.norms[x_.norm->norm()].factors_as_type = true;
  }

 private:
  DnnOperation operation(DnnKind kind, bool by_group) const {
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
  void take_all_groups(DnnOperation& o) const {
    o.engine = Engine::hopper;
    o.n = c_.samples;
    o.groups = c_.groups();
  }
  std::int64_t launches(const DnnOperation& o) const { return c_.samples / o.n; }
  TensorLayout layout() const {
    return {.outer = node_.output,
            .inner = node_.input,
            .taps = node_.kernel * node_.kernel,
            .padded_outer = y_.width,
            .padded_inner = x_.width,
            .windows = x_.windows};
  }
  Operand of_values(DnnRole role, Storage storage, const Value& shape, const DnnOperation& o,
                    bool write = false) const {
    return {role, {storage, 0}, c_.bytes(shape) / launches(o), write};
  }
  bool wants_factors_as_type(const DnnOperation& o) const {
    return c_.type != Type::fp32 && std::ranges::any_of(o.tensors(), [&](const DnnTensor& tensor) {
             return tensor.role == DnnRole::scale && tensor.type == c_.type;
           });
  }
  // Adds the affine form of the norm that makes x, per channel and group.
  void add_factors(Emission& e, std::vector<Operand>& operands, const DnnOperation& o) const {
    const NormStatistics& norm = x_.norm->norm();
    const bool as_type = wants_factors_as_type(o);
    const std::int64_t row = x_.width * bytes_of(as_type ? c_.type : Type::fp32);
    operands.push_back({DnnRole::scale, as_type ? norm.scale_as_type(e) : norm.scale(e), row});
    operands.push_back({DnnRole::bias, as_type ? norm.bias_as_type(e) : norm.bias(e), row});
  }
  void data_gradient(Emission& e, Storage dy, Storage again) const {
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
  void weight_gradient(Emission& e, Storage dy, Storage input) const {
    const ConvolutionPlan& plan = e.choices().convolutions[*this];
    const DnnOperation o = weight_operation(plan);
    const Tensor dw = e.home().add(parameter_, layout(), o.result);
    std::vector<Operand> operands = {
        of_values(DnnRole::x, input, x_, o), of_values(DnnRole::dy, dy, y_, o), {DnnRole::dw, dw, 0, true}};
    if (plan.way.weight_prologue != Prologue::none) add_factors(e, operands, o);
    e.operation(name_ + " weight gradient", o, 1, operands);
    e.home().added();
  }

  Convolution node_;
  std::string name_;
  const Parameter& parameter_;
  const Value &x_, &y_;
};

namespace {

// SiteCommands holds the commands of one convolution and the norms around it, on scratch memory, in order to count or
// time them. They are the same commands that a program would have. In the forward pass, the commands begin with the
// norm that makes the convolution's input, whose sums exist already. They end with the statistics of the convolution's
// result. In the backward pass, they begin with the gradient of the result and end with the gradient of the norm's
// input. The copy of the weight gradient to the flat vector is left out.
class SiteCommands {
 public:
  SiteCommands(const ImageContext& context, const ConvolutionLayer& layer, const ConvolutionPlan& plan,
               Emission::Plans plans)
      : emission_(context, choices_, schedule_, plans) {
    layer.take(plan, choices_);
    const Value &x = layer.x(), &y = layer.y();
    const bool last = x.first_reader == &layer;  // then the norm's backward pass follows
    if (context.training && x.norm != nullptr)
      give_normalised_input(context, *x.norm);
    else
      emission_[x].data = scratch(x.name, context.bytes(x));
    layer.forward(emission_);
    if (context.training) {
      if (y.statistics != nullptr) y.statistics->forward(emission_);
      emission_[y].gradient = scratch(y.name + " gradient", context.bytes(y));
      if (x.readers > 1 && last) emission_[x].gradient = scratch(x.name + " gradient of others", context.bytes(x));
      layer.backward(emission_);
      if (x.norm != nullptr && last) x.norm->backward(emission_);
    }
    schedule_.plan(*context.parameters, 0);
  }
  Schedule& schedule() { return schedule_; }

 private:
  Storage scratch(const std::string& what, std::int64_t bytes) { return schedule_.lasting(what, bytes); }
  void give_normalised_input(const ImageContext& context, const NormLayer& norm) {
    for (const Value* input : norm.inputs()) emission_[*input].data = scratch(input->name, context.bytes(*input));
    for (const NormStatistics* statistics : norm.statistics()) {
      choices_.norms[*statistics].sums_come = true;
      emission_[*statistics].sums =
          scratch(statistics->name() + " sums", 2 * statistics->groups() * statistics->row_bytes());
    }
    norm.forward(emission_);
  }

  Choices choices_;
  Schedule schedule_;
  Emission emission_;
};

// Returns the name under which a part is timed. An operation is the same for every layer. A kernel is identified by its
// name and the sizes of its storages.
std::string what_it_is(const Command& command, const Schedule& schedule, Type type) {
  if (!command.operation.empty()) return command.operation;
  std::string text = cat(type_name(type), " ", command.name);
  for (const Access& use : command.uses) text += cat(" ", schedule.bytes(use.storage));
  return text;
}

// Returns each command as a part to be timed. The parts share scratch memory of their own, with random numbers. The
// result is empty when the device has no room for it.
std::vector<TrialPart> trial_of(Device& device, const ImageContext& context, const ConvolutionLayer& layer,
                                const ConvolutionPlan& plan) {
  struct OnScratch {
    OnScratch(const ImageContext& c, const ConvolutionLayer& l, const ConvolutionPlan& p)
        : commands(c, l, p, Emission::Plans::found) {}
    SiteCommands commands;
    DeviceMemory memory = {};
  };
  const auto site = std::make_shared<OnScratch>(context, layer, plan);
  Schedule& schedule = site->commands.schedule();
  const std::int64_t bytes = schedule.arena().bytes();
  if (device.allocated_bytes() + bytes > device.facts().free_bytes) return {};
  site->memory = DeviceMemory(device, bytes, "timing of a layer");
  fill_random(device, site->memory.data(), bytes, context.type, device.compute_stream());
  schedule.bind(site->memory.data<char>());
  std::vector<TrialPart> parts;
  for (const Command& command : schedule.commands())
    parts.push_back({what_it_is(command, schedule, context.type),
                     [site, &command](Device& d, Stream stream) { command.issue(d, stream, false); }});
  return parts;
}

// Returns the ways of a convolution whose input is relu(norm) of one other value, when no other layer reads the input.
std::vector<ConvolutionWay> ways_behind_norm(bool one_group) {
  constexpr Prologue prologue = Prologue::scale_bias_relu;
  std::vector<ConvolutionWay> ways;
  if (one_group)  // one weight gradient covers all samples, but its prologue takes the factors of one group
    ways.push_back({"normalised in the prologues", prologue, prologue, Epilogue::relu_sums});
  ways.push_back({"normalised in the prologue and written by the data gradient", prologue, Prologue::none,
                  Epilogue::relu_sums_output});
  ways.push_back({"normalised in the prologue and once more for the weight gradient", prologue, Prologue::none,
                  Epilogue::relu_sums});
  ways.push_back({"sums in the data gradient", Prologue::none, Prologue::none, Epilogue::relu_sums});
  return ways;
}

// Returns the ways of a convolution that sends its gradient after the input's other readers.
std::vector<ConvolutionWay> ways_to_add(bool brings_sums) {
  std::vector<ConvolutionWay> ways;
  if (brings_sums)
    ways.push_back(
        {"addition, ReLU and sums in the data gradient", Prologue::none, Prologue::none, Epilogue::add_relu_sums});
  ways.push_back({"addition in the data gradient", Prologue::none, Prologue::none, Epilogue::add});
  return ways;
}

// Returns whether this program may use convolutions from the library for Hopper.
bool takes_cutlass(const ImageContext& context) {
  return context.type != Type::fp32 && hopper::runs_on(context.device->facts().compute_capability);
}

std::vector<ConvolutionWay> input_ways(const ImageContext& context, const ConvolutionLayer& layer) {
  const Value& x = layer.x();
  std::vector<ConvolutionWay> ways;
  if (context.training && x.needs_gradient) {
    const bool last = x.first_reader == &layer;
    const bool may_join = x.norm != nullptr && !x.norm->norm().by_sample();
    if (x.readers == 1 && may_join && !x.norm->adds()) ways = ways_behind_norm(context.groups() == 1);
    if (x.readers > 1 && last) ways = ways_to_add(may_join && !x.norm->adds_norm());
  }
  // CUTLASS also offers the data gradients with sums. Its kernels have no prologue and write no further output, so the
  // other ways have no variant by CUTLASS.
  if (takes_cutlass(context))
    for (std::size_t i = 0, count = ways.size(); i < count; ++i)
      if (ways[i].prologue == Prologue::none && ways[i].brings_sums()) {
        ConvolutionWay way = ways[i];
        way.name += " by CUTLASS";
        way.data_engine = Engine::hopper;
        ways.push_back(way);
      }
  // cuDNN 9 proposes engines for sums after a data gradient with a stride. None of them compiles on any GPU, and the
  // attempts take seconds.
  if (layer.stride() > 1) std::erase_if(ways, [](const ConvolutionWay& way) { return way.brings_sums(); });
  ways.push_back({"separate", Prologue::none, Prologue::none, Epilogue::none});
  return ways;
}

// Returns the kernels that can make the sums for the norm after the convolution.
std::vector<SumsWay> sums_ways(const ImageContext& context, const ConvolutionLayer& layer) {
  const NormStatistics* norm = layer.y().statistics;
  if (!context.training || norm == nullptr || norm->by_sample()) return {SumsWay::separate};
  std::vector<SumsWay> ways;
  ways.push_back(SumsWay::epilogue);
  if (takes_cutlass(context)) ways.push_back(SumsWay::hopper);
  ways.push_back(SumsWay::separate);
  return ways;
}
const char* name_of(SumsWay sums) {
  return sums == SumsWay::separate   ? "separate"
         : sums == SumsWay::epilogue ? "in the epilogue"
                                     : "in the epilogue by CUTLASS";
}

std::string name_of(const WeightWay& way) {
  return cat("in ", type_name(way.type), way.engine == Engine::hopper ? " by CUTLASS" : "");
}
std::vector<WeightWay> weight_ways(const ImageContext& context, const ConvolutionWay& way) {
  if (!context.training || context.type == Type::fp32 || way.weight_prologue != Prologue::none) return {{}};
  std::vector<WeightWay> ways = {{context.type, Engine::general}};
  if (takes_cutlass(context)) ways.push_back({Type::fp32, Engine::hopper});
  ways.push_back({});
  return ways;
}

double lost_to_groups(const ImageContext& context, const std::vector<DnnOperation>& operations) {
  double bytes = 0;
  for (const DnnOperation& o : operations)
    bytes += bytes_lost_to_groups(context.device->facts(), o, context.samples / o.n);
  return bytes;
}

struct NamedPlan {
  std::string name;
  ConvolutionPlan plan;
};
// Returns all plans that the graph allows, whether or not the device has kernels for them. The last plan uses plain
// operations only.
std::vector<NamedPlan> possible_plans(const ImageContext& context, const ConvolutionLayer& layer) {
  const std::vector<ConvolutionWay> inputs = input_ways(context, layer);
  const std::vector<SumsWay> all_sums = sums_ways(context, layer);
  std::vector<NamedPlan> plans;
  for (const ConvolutionWay& input : inputs)
    for (const SumsWay sums : all_sums) {
      // CUTLASS's kernels with sums have no prologue.
      if (sums == SumsWay::hopper && input.prologue != Prologue::none) continue;
      const std::vector<WeightWay> weights = weight_ways(context, input);
      for (const WeightWay& weight : weights) {
        std::string name = inputs.size() > 1 ? cat("input ", input.name) : "";
        const auto add = [&](const std::string& part) { name += cat(name.empty() ? "" : ", ", part); };
        if (all_sums.size() > 1) add(cat("statistics ", name_of(sums)));
        if (weights.size() > 1) add(cat("weight gradient ", name_of(weight)));
        plans.push_back({name.empty() ? "plain" : name, {.way = input, .sums = sums, .weight = weight}});
      }
    }
  return plans;
}

}  // namespace

// Lists all ways to compute the layer that the graph allows, whether or not the device has kernels for them. The last
// way uses plain operations only.
void ConvolutionLayer::list_sites(std::vector<LayerSite>& sites) const {
  const std::vector<NamedPlan> plans = possible_plans(c_, *this);
  FusionSite site{.name = name_};
  for (const NamedPlan& way : plans) {
    SiteCommands counted(c_, *this, way.plan, Emission::Plans::none);
    const Traffic traffic = traffic_of(counted.schedule());
    const std::vector<DnnOperation> asked = operations(way.plan);
    site.ways.push_back(
        {.name = way.name,
         .operations = asked,
         .bytes = traffic.forward_bytes + traffic.backward_bytes + lost_to_groups(c_, asked),
         .flops = traffic.flops,
         .trial = [this, plan = way.plan](Device& device) { return trial_of(device, c_, *this, plan); }});
  }
  sites.push_back(
      {std::move(site), [this, plans](std::size_t way, Choices& choices) { take(plans[way].plan, choices); }});
}
std::unique_ptr<ImageLayer> make_layer(const ImageContext& context, const Convolution& node, Value& x, Value& y) {
  auto layer = std::make_unique<ConvolutionLayer>(context, node, x, y);
  if (x.width % 8 != 0 && !layer->plain_plans_exist()) x.width = round_up(x.width, 8);
  return layer;
}

}  // namespace ringtrain::cuda
