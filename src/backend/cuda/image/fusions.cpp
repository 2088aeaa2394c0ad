// Lists the ways to compute a convolution of an image network. A way is a plan for the three products: the convolution,
// the data gradient and the weight gradient. It says how the input is read, how the gradient is passed on, which kernel
// makes the sums for the norm after the convolution, and the library and the type of the weight gradient.
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/hopper/plans.h"
#include "backend/cuda/image/convolution.h"
#include "backend/cuda/image/emission.h"
#include "backend/cuda/image/norm.h"
#include "backend/cuda/program/schedule.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

// SiteCommands holds the commands of one convolution and the norms around it, on scratch memory, in order to count or
// time them. They are the same commands that a program would have. In the forward pass, the commands begin with the
// norm that makes the convolution's input, whose sums exist already. They end with the statistics of the convolution's
// result. In the backward pass, they begin with the gradient of the result and end with the gradient of the norm's
// input. The copy of the weight gradient to the flat vector is left out.
class SiteCommands {
 public:
  SiteCommands(const ImageContext& context, const ConvolutionLayer& layer, const ConvolutionPlan& plan,
               Emission::Plans plans);
  Schedule& schedule() { return schedule_; }
  double bytes() const;
  double flops() const;

 private:
  Storage scratch(const std::string& what, std::int64_t bytes) { return schedule_.lasting(what, bytes); }
  void give_normalised_input(const ImageContext& context, const NormLayer& norm);

  Choices choices_;
  Schedule schedule_;
  Emission emission_;
};

SiteCommands::SiteCommands(const ImageContext& context, const ConvolutionLayer& layer, const ConvolutionPlan& plan,
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

void SiteCommands::give_normalised_input(const ImageContext& context, const NormLayer& norm) {
  for (const Value* input : norm.inputs()) emission_[*input].data = scratch(input->name, context.bytes(*input));
  for (const NormStatistics* statistics : norm.statistics()) {
    choices_.norms[*statistics].sums_come = true;
    emission_[*statistics].sums =
        scratch(statistics->name() + " sums", 2 * statistics->groups() * statistics->row_bytes());
  }
  norm.forward(emission_);
}

double SiteCommands::bytes() const {
  double sum = 0;
  for (const Command& command : schedule_.commands()) sum += command.bytes;
  return sum;
}
double SiteCommands::flops() const {
  double sum = 0;
  for (const Command& command : schedule_.commands()) sum += command.flops;
  return sum;
}

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

// Holds the type to which the weight gradient of a 16-bit layer is rounded before it goes to the flat vector. cuDNN's
// kernels made for one type of GPU write only 16 bits. Its kernels that write fp32 are the same for all GPUs.
struct WeightWay {
  Type type = Type::fp32;
  Engine engine = Engine::general;
};
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
        plans.push_back({name.empty() ? "plain" : name,
                         {.way = input, .sums = sums, .weight_gradient = weight.type, .weight_engine = weight.engine}});
      }
    }
  return plans;
}

}  // namespace

LayerSite site_of(const ImageContext& context, const ConvolutionLayer& layer) {
  const std::vector<NamedPlan> plans = possible_plans(context, layer);
  FusionSite site{.name = layer.name(), .ways = {}};
  for (const NamedPlan& way : plans) {
    const SiteCommands counted(context, layer, way.plan, Emission::Plans::none);
    const std::vector<DnnOperation> operations = layer.operations(way.plan);
    site.ways.push_back({.name = way.name,
                         .operations = operations,
                         .bytes = counted.bytes() + lost_to_groups(context, operations),
                         .flops = counted.flops(),
                         .trial = [&context, &layer, plan = way.plan](Device& device) {
                           return trial_of(device, context, layer, plan);
                         }});
  }
  return {std::move(site),
          [&layer, plans](std::size_t way, Choices& choices) { layer.take(plans[way].plan, choices); }};
}

}  // namespace ringtrain::cuda
