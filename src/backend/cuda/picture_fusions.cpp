#include "backend/cuda/picture_fusions.h"

#include "backend/cuda/fusion.h"
#include "backend/cuda/picture_norm.h"
#include "backend/cuda/picture_trials.h"

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

// The input's other consumers have sent their gradients before.
std::vector<ConvolutionWay> ways_to_add(bool brings_sums) {
  std::vector<ConvolutionWay> ways;
  if (brings_sums)
    ways.push_back(
        {"addition, ReLU and sums in the data gradient", Prologue::none, Prologue::none, Epilogue::add_relu_sums});
  ways.push_back({"addition in the data gradient", Prologue::none, Prologue::none, Epilogue::add});
  return ways;
}

std::vector<ConvolutionWay> possible_ways(const PictureContext& context, const ConvolutionLayer& layer,
                                          const Value& x) {
  std::vector<ConvolutionWay> ways;
  const bool last = x.first_consumer == &layer;
  if (x.consumers == 1 && x.norm != nullptr && !x.norm->adds()) ways = ways_behind_norm(context.groups() == 1);
  if (x.consumers > 1 && last) ways = ways_to_add(x.norm != nullptr && !x.norm->adds_norm());
  ways.push_back({});
  return ways;
}

}  // namespace

ConvolutionWay choose_convolution_way(const PictureContext& context, const ConvolutionLayer& layer,
                                      const std::string& name, const Value& x, const Value& y) {
  const std::vector<ConvolutionWay> ways = possible_ways(context, layer, x);
  if (ways.size() == 1) return ways.front();
  const bool normalised = x.norm != nullptr, adds = x.consumers > 1;
  const auto map = static_cast<double>(context.bytes(x)), result = static_cast<double>(context.bytes(y));
  FusionSite site{.name = name + " input", .ways = {}};
  for (const ConvolutionWay& way : ways) {
    const DnnOperation forward = layer.forward_operation(way, SumsWay::separate), data = layer.data_operation(way),
                       weight = layer.weight_operation(way);
    // The three products' own traffic, then that of epilogues and of the kernels which remain.
    double maps = 3;
    std::vector<TrialPart> parts = {operation_trial(context, forward), operation_trial(context, data),
                                    operation_trial(context, weight)};
    const bool stored = way.prologue == Prologue::none;
    if (normalised && !adds && (stored || way.makes_input_again())) {
      maps += 2;
      parts.push_back(norm_apply_trial(context, x, !way.brings_sums()));
    }
    if (way.brings_sums()) maps += way.data_epilogue == Epilogue::relu_sums ? 1 : 2;
    if (normalised && !way.brings_sums()) {
      maps += 2 + 2.0 / 16;  // the mask is a bit per element, written and read
      parts.push_back(norm_backward_sums_trial(context, x));
    }
    if (way.adds()) maps += 1;
    if (adds && !way.adds()) {
      maps += 3;
      parts.push_back(add_trial(context, x));
    }
    site.ways.push_back({.name = way.name,
                         .operations = {forward, data, weight},
                         .bytes = maps * map + 3 * result,
                         .trial = trial(std::move(parts))});
  }
  return ways[context.fusions->choose(*context.device, site)];
}

SumsWay choose_sums_way(const PictureContext& context, const ConvolutionLayer& layer, const std::string& name,
                        const ConvolutionWay& way, const Value& y) {
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
    const DnnOperation forward = layer.forward_operation(way, sums.way);
    std::vector<TrialPart> parts = {operation_trial(context, forward)};
    const bool separate = sums.way == SumsWay::separate;
    if (separate) parts.push_back(norm_sums_trial(context, y));
    site.ways.push_back({.name = sums.name,
                         .operations = {forward},
                         .bytes = static_cast<double>(context.bytes(y)) * (separate ? 2 : 1),
                         .trial = trial(std::move(parts))});
  }
  return ways[context.fusions->choose(*context.device, site)].way;
}

}  // namespace ringtrain::cuda
