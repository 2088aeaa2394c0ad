#include "backend/cuda/image/emission.h"

#include <algorithm>
#include <utility>

#include "base/rounding.h"

namespace ringtrain::cuda {

std::int64_t TensorLayout::own_elements() const {
  return padded_outer * (windows ? 1 : taps) * padded_inner;
}

Tensor TensorGroup::add(const Parameter& parameter, const TensorLayout& layout) {
  const auto [place, added] = known_.try_emplace(parameter.name, Tensor{storage_, elements_ * bytes_of(type_)});
  if (!added) return place->second;
  places_.push_back({.flat_offset = parameter.offset,
                     .own_offset = elements_,
                     .outer = layout.outer,
                     .inner = static_cast<int>(layout.inner),
                     .taps = static_cast<int>(layout.taps),
                     .padded = static_cast<int>(layout.padded_inner),
                     .windows = layout.windows});
  names_.push_back(parameter.name);
  elements_ += round_up(layout.own_elements(), Schedule::alignment / bytes_of(type_));
  schedule_.resize(storage_, elements_ * bytes_of(type_));
  return place->second;
}

GradientsHome::GradientsHome(Schedule& schedule, std::int64_t segment_elements, Send send)
    : schedule_(schedule), send_(std::move(send)) {
  constexpr std::int64_t worth_a_launch = std::int64_t{4} << 20;
  // The limit is at most a quarter of a segment, so that no bucket waits long for its last tensor.
  enough_ = segment_elements > 0 ? std::min(worth_a_launch, segment_elements / 4) : worth_a_launch;
}

Tensor GradientsHome::add(const Parameter& parameter, const TensorLayout& layout, Type type) {
  if (open_ != nullptr && open_->type() != type) flush();
  if (open_ == nullptr) open_ = std::make_unique<TensorGroup>(schedule_, schedule_.buffer("weight gradients", 0), type);
  return open_->add(parameter, layout);
}

void GradientsHome::added() {
  if (open_->elements() >= enough_) flush();
}

void GradientsHome::flush() {
  if (open_ == nullptr) return;
  send_(*open_);
  open_ = nullptr;
}

Emission::Emission(const ImageContext& context, const Choices& choices, ProgramBase& program,
                   std::int64_t segment_elements)
    : c_(context),
      choices_(choices),
      program_(&program),
      schedule_(program.schedule()),
      weights_(schedule_, schedule_.lasting("weights", 0), context.type),
      vectors_(schedule_, schedule_.lasting("norms' parameters and biases", 0), Type::fp32),
      statistics_(schedule_, schedule_.per_slot("running statistics of the pass", 0), Type::fp32),
      home_(schedule_, segment_elements, [&program](const TensorGroup& gradients) {
        program.copy_home("gradients home", gradients.storage(), gradients.type() == Type::fp32, gradients.places(),
                          gradients.names());
      }) {}

Emission::Emission(const ImageContext& context, const Choices& choices, Schedule& scratch, Plans plans)
    : c_(context),
      choices_(choices),
      schedule_(scratch),
      plans_(plans),
      weights_(schedule_, schedule_.lasting("weights", 0), context.type),
      vectors_(schedule_, schedule_.lasting("norms' parameters and biases", 0), Type::fp32),
      statistics_(schedule_, schedule_.lasting("running statistics of the pass", 0), Type::fp32),
      home_(schedule_, 0, [](const TensorGroup&) {}),
      scratch_state_(schedule_.lasting("step state", sizeof(StepState))),
      scratch_gradients_(schedule_.lasting("gradients of norms' parameters and biases", 0)) {}

float* Emission::gradient(const Parameter& parameter) {
  if (program_ != nullptr) return program_->gradient(parameter);
  return at<float>({scratch_gradients_, vector(parameter, 0).offset});
}
const StepState* Emission::step_state() const {
  return program_ != nullptr ? program_->step_state() : at<const StepState>(scratch_state_);
}

Tensor Emission::vector(const Parameter& parameter, std::int64_t width) {
  const Tensor place = vectors_.add(parameter, TensorLayout::vector(parameter.count, width));
  if (scratch_gradients_ >= 0) schedule_.resize(scratch_gradients_, schedule_.bytes(vectors_.storage()));
  return place;
}
Tensor Emission::statistic(const Parameter& parameter, std::int64_t width) {
  return statistics_.add(parameter, TensorLayout::vector(parameter.count, width));
}

Storage Emission::of_group(const std::string& what, Storage own) {
  if (c_.span == 1) return own;
  const std::int64_t bytes = schedule_.bytes(own);
  const std::string name = what + " of the group's ranks";
  const Storage all = buffer(name, c_.span * bytes);
  Command command{.name = name, .uses = {{own}, {all, true}}, .replayed = false};
  command.issue = [=, this](Device& device, Stream stream, bool) {
    // Commands on scratch memory belong to no program. No other rank takes part in them.
    DeviceNormTeam* team = program_ == nullptr ? nullptr : *c_.norm_team;
    device.copy(at<char>(all) + (team == nullptr ? 0 : team->rank()) * bytes, at(own), bytes, CopyKind::on_device,
                stream);
    if (team != nullptr)
      team->gather_on_device({at<float>(all), static_cast<std::size_t>(c_.span * bytes) / sizeof(float)},
                             stream.handle);
  };
  schedule_.add(std::move(command));
  return all;
}

void Emission::operation(std::string name, const DnnOperation& operation, std::int64_t launches,
                         const std::vector<Operand>& operands) {
  const DnnPlan* plan = plans_ == Plans::found ? &plan_of(*c_.device, name, operation) : nullptr;
  add_operation(schedule_, plan, std::move(name), operation, launches, operands);
}

void Emission::send_gradient(const Value& value, Storage part) {
  Storage& gradient = values_[value].gradient;
  if (gradient < 0) {
    gradient = part;
    return;
  }
  const std::string name = value.name + " gradient, added up";
  const Storage before = gradient, sum = buffer(name, c_.bytes(value));
  const std::int64_t count = c_.samples * value.elements();
  kernel(name, {{before}, {part}, {sum, true}}, [=, this](bool) {
    return launch_of(c_.type, AddArguments{.a = at(before), .b = at(part), .y = at(sum), .count = count});
  });
  gradient = sum;
}

}  // namespace ringtrain::cuda
