#include "backend/cuda/image/fusions.h"

#include "backend/cuda/image/norm.h"
#include "backend/cuda/image/trials.h"
#include "backend/cuda/program/fusion.h"
#include "backend/cuda/program/group_launches.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

// The input is relu(norm) of one other value, which nobody else reads.
std::vector<ConvolutionWay> ways_behind_norm(bool one_group) {
  constexpr Prologue prologue = Prologue::scale_bias_relu;
  std::vector<ConvolutionWay> ways;
  if (one_group)  // a weight gradient takes all groups at once
    ways.push_back({"normalised in the prologues", prologue, prologue, Epilogue::relu_sums});
  ways.push_back({"normalised in the prologue, written by the data gradient", prologue, Prologue::none,
                  Epilogue::relu_sums_output});
  ways.push_back({"normalised in the prologue, and once more for the weight gradient", prologue, Prologue::none,
                  Epilogue::relu_sums});
  ways.push_back({"sums in the data gradient", Prologue::none, Prologue::none, Epilogue::relu_sums});
  return ways;
}

// The input's other readers have sent their gradients before.
std::vector<ConvolutionWay> ways_to_add(bool brings_sums) {
  std::vector<ConvolutionWay> ways;
  if (brings_sums)
    ways.push_back(
        {"addition, ReLU and sums in the data gradient", Prologue::none, Prologue::none, Epilogue::add_relu_sums});
  ways.push_back({"addition in the data gradient", Prologue::none, Prologue::none, Epilogue::add});
  return ways;
}

std::vector<ConvolutionWay> possible_ways(const ImageContext& context, const ConvolutionLayer& layer, const Value& x) {
  std::vector<ConvolutionWay> ways;
  const bool last = x.first_reader == &layer;
  if (x.readers == 1 && x.norm != nullptr && !x.norm->adds()) ways = ways_behind_norm(context.groups() == 1);
  if (x.readers > 1 && last) ways = ways_to_add(x.norm != nullptr && !x.norm->adds_norm());
  // cuDNN 9 proposes sums behind a data gradient with a stride, and compiles none on any GPU, after seconds of trying.
  if (layer.stride() > 1) std::erase_if(ways, [](const ConvolutionWay& way) { return way.brings_sums(); });
  ways.push_back({});
  return ways;
}

// What a way costs beside its three products, in maps of x's size, and the kernels that it leaves over.
struct Rest {
  double maps = 0;
  bool applies = false, sums = false, adds = false;
};
Rest rest_of(const ConvolutionWay& way, const Value& x) {
  const bool normalised = x.norm != nullptr, shared = x.readers > 1;
  Rest rest;
  rest.applies = normalised && !shared && (way.prologue == Prologue::none || way.makes_input_again());
  rest.sums = normalised && !way.brings_sums();
  rest.adds = shared && !way.adds();
  if (rest.applies) rest.maps += 2;
  if (rest.sums) rest.maps += 2 + 2.0 / 16;  // the mask is a bit per element, written and read
  if (rest.adds) rest.maps += 3;
  if (way.adds()) rest.maps += 1;
  if (way.brings_sums()) rest.maps += way.data_epilogue == Epilogue::relu_sums ? 1 : 2;
  return rest;
}

double lost_to_groups(const ImageContext& context, const DnnOperation& product) {
  return bytes_lost_to_groups(context.device->facts(), product, context.samples / product.n);
}

}  // namespace

Type choose_weight_gradient_type(FusionTable& fusions, const ImageContext& context, const ConvolutionLayer& layer,
                                 const std::string& name) {
  if (context.type == Type::fp32) return Type::fp32;
  FusionSite site{.name = name + " weight gradient", .ways = {}};
  const Type types[] = {context.type, Type::fp32};
  for (const Type type : types) {
    const DnnOperation product = layer.weight_operation({.weight_gradient = type});
    const auto parts = [&context, product] { return std::vector<TrialPart>{operation_trial(context, product)}; };
    site.ways.push_back({.name = cat("in ", type_name(type)),
                         .operations = {product},
                         .bytes = static_cast<double>(product.k * product.c * product.r * product.r * bytes_of(type)),
                         .trial = trial(parts)});
  }
  return types[fusions.choose(*context.device, site)];
}

ConvolutionWay choose_convolution_way(FusionTable& fusions, const ImageContext& context, const ConvolutionLayer& layer,
                                      const std::string& name, const ConvolutionPlan& plan, const Value& x,
                                      const Value& y) {
  const std::vector<ConvolutionWay> ways = possible_ways(context, layer, x);
  if (ways.size() == 1) return ways.front();
  FusionSite site{.name = name + " input", .ways = {}};
  for (const ConvolutionWay& way : ways) {
    ConvolutionPlan with = plan;
    with.way = way;
    const std::vector<DnnOperation> products = {layer.forward_operation(with), layer.data_operation(with),
                                                layer.weight_operation(with)};
    const Rest rest = rest_of(way, x);
    double bytes = (3 + rest.maps) * static_cast<double>(context.bytes(x)) + 3 * static_cast<double>(context.bytes(y));
    for (const DnnOperation& product : products) bytes += lost_to_groups(context, product);
    const auto parts = [&context, &x, way, products, rest] {
      std::vector<TrialPart> all;
      for (const DnnOperation& product : products) all.push_back(operation_trial(context, product));
      if (rest.applies) all.push_back(norm_apply_trial(context, x, !way.brings_sums()));
      if (rest.sums) all.push_back(norm_backward_sums_trial(context, x));
      if (rest.adds) all.push_back(add_trial(context, x));
      return all;
    };
    site.ways.push_back({.name = way.name, .operations = products, .bytes = bytes, .trial = trial(parts)});
  }
  return ways[fusions.choose(*context.device, site)];
}

SumsWay choose_sums_way(FusionTable& fusions, const ImageContext& context, const ConvolutionLayer& layer,
                        const std::string& name, const ConvolutionPlan& plan, const Value& y) {
  struct Named {
    SumsWay way;
    const char* name;
  };
  std::vector<Named> ways;
  if (context.type == Type::fp16) ways.push_back({SumsWay::specialised, "sums in the epilogue, specialised engine"});
  ways.push_back({SumsWay::epilogue, "sums in the epilogue"});
  ways.push_back({SumsWay::separate, "separate"});
  FusionSite site{.name = name + " statistics", .ways = {}};
  for (const Named& sums : ways) {
    ConvolutionPlan with = plan;
    with.sums = sums.way;
    const DnnOperation forward = layer.forward_operation(with);
    const bool separate = sums.way == SumsWay::separate;
    const auto parts = [&context, &y, forward, separate] {
      std::vector<TrialPart> all = {operation_trial(context, forward)};
      if (separate) all.push_back(norm_sums_trial(context, y));
      return all;
    };
    site.ways.push_back(
        {.name = sums.name,
         .operations = {forward},
         .bytes = static_cast<double>(context.bytes(y)) * (separate ? 2 : 1) + lost_to_groups(context, forward),
         .trial = trial(parts)});
  }
  return ways[fusions.choose(*context.device, site)].way;
}

}  // namespace ringtrain::cuda
