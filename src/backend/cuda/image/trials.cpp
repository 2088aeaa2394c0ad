#include "backend/cuda/image/trials.h"

#include <memory>

#include "backend/cuda/device/random_memory.h"
#include "backend/cuda/image/norm.h"
#include "base/error.h"

namespace ringtrain::cuda {

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

namespace {

// Returns the name under which a part is timed. An operation is the same for every layer. A kernel is identified by its
// name and the sizes of its storages.
std::string what_it_is(const Command& command, const Schedule& schedule, Type type) {
  if (!command.operation.empty()) return command.operation;
  std::string text = cat(type_name(type), " ", command.name);
  for (const Access& use : command.uses) text += cat(" ", schedule.bytes(use.storage));
  return text;
}

}  // namespace

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

}  // namespace ringtrain::cuda
