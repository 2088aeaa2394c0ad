#include "backend/cuda/program/base.h"

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain::cuda {

std::vector<UpdatePlace> update_places(std::span<const UpdateRange> ranges, std::span<const WeightCopy> copies) {
  std::vector<WeightCopy> sorted(copies.begin(), copies.end());
  std::ranges::sort(sorted, {}, [](const WeightCopy& copy) { return copy.place.flat_offset; });
  std::vector<UpdatePlace> places;
  auto copy = sorted.begin();
  for (const UpdateRange& range : ranges) {
    const int number = static_cast<int>(&range - ranges.data());
    std::int64_t done = range.begin;
    const std::int64_t shift = range.direction < 0 ? 0 : range.direction - range.begin;
    const std::int64_t state_shift = range.state() - range.begin;
    const auto without_copy = [&](std::int64_t end) {
      if (end > done)
        places.push_back({.tensor = {.flat_offset = done, .outer = end - done, .inner = 1, .taps = 1, .padded = 1},
                          .weight_decay = range.weight_decay,
                          .range = number,
                          .matrix_factor = range.matrix_factor,
                          .direction_shift = shift,
                          .state_shift = state_shift});
    };
    for (; copy != sorted.end() && copy->place.flat_offset < range.end; ++copy) {
      const TensorPlace& p = copy->place;
      const std::int64_t end = p.flat_offset + p.outer * p.inner * p.taps;
      if (p.flat_offset < done || end > range.end)
        throw Error(cat("the weights [", p.flat_offset, ", ", end, ") have a copy, but the update's range [",
                        range.begin, ", ", range.end, ") or another copy ends within them"));
      without_copy(p.flat_offset);
      places.push_back(
          {p, copy->own, range.weight_decay, copy->own_is_fp32, number, range.matrix_factor, shift, state_shift});
      done = end;
    }
    without_copy(range.end);
  }
  if (copy != sorted.end())
    throw Error(cat("the weights from ", copy->place.flat_offset, " on have a copy, but no update reaches them"));
  return places;
}

Type type_of(Precision precision) {
  return precision == Precision::bf16 ? Type::bf16 : precision == Precision::fp16 ? Type::fp16 : Type::fp32;
}
Math math_of(Precision precision) {
  return precision == Precision::fp32 ? Math::fp32 : precision == Precision::tf32 ? Math::tf32 : Math::half;
}

ProgramBase::ProgramBase(Device& device, const BackendOptions& options, const Graph& graph, std::int64_t micro_batch,
                         Precision precision, PassMode mode, int slots)
    : device_(device),
      options_(options),
      parameters_(graph.parameters()),
      micro_batch_(micro_batch),
      sequence_(graph.sequence()),
      type_(type_of(precision)),
      math_(math_of(precision)),
      mode_(mode),
      training_(mode == PassMode::training),
      offload_stretch_(training_ ? graph.offload_stretch() : 0),
      schedule_(slots),
      sample_bytes_(std::holds_alternative<PartInput>(graph.nodes().front().operation) ? 0 : graph.input_bytes()),
      copy_stream_(device.make_stream(false)),
      state_ring_(device),
      host_sums_(device, 1),
      host_logits_(device, graph.classes()),
      finished_(device.make_event()),
      sums_closed_(device.make_event()) {
  for (Staged& slot : places_) {
    slot.inputs = schedule_.lasting("staged input", input_bytes());
    slot.targets = schedule_.lasting("staged targets", size_in_bytes<std::int32_t>(target_count()));
    slot.copied = device.make_event();
    slot.consumed = device.make_event();
  }
  state_ = schedule_.per_slot("step state", size_in_bytes<StepState>(1));
  targets_ = schedule_.lasting("targets", size_in_bytes<std::int32_t>(target_count()));
  sums_ = schedule_.lasting("sums of the passes", size_in_bytes<PassSums>(1));
}

// Waits for the streams, because their work may still use the memory.
ProgramBase::~ProgramBase() {
  try {
    if (memory_.bytes() == 0) return;
    wait_for(device_, device_.compute_stream(), finished_, {});
    wait_for(device_, copy_stream_, finished_, {});
    if (offloaded_ != nullptr) wait_for(device_, schedule_.offload_stream(), finished_, {});
  } catch (const Error&) {  // the device is lost, and the next call to it reports that
  }
}

void ProgramBase::add_input_command(std::string name, std::vector<Access> uses,
                                    std::function<void(Device&, Stream, const std::uint8_t*)> issue) {
  for (const Staged& slot : places_) uses.push_back({slot.inputs});
  Command command{.name = std::move(name), .uses = std::move(uses), .replayed = false};
  command.issue = [this, run = std::move(issue)](Device& device, Stream stream, bool) {
    run(device, stream, schedule_.at<const std::uint8_t>(places_[taken_ % 2].inputs));
  };
  schedule_.add(std::move(command));
}

void ProgramBase::add_arrival(std::string name, Storage to, const std::byte* PartTraffic::*end,
                              std::int64_t PartBytes::*bytes) {
  part_bytes_.*bytes = schedule_.bytes(to);
  schedule_.add({.name = std::move(name),
                 .uses = {{to, true}},
                 .issue =
                     [this, to, end](Device& device, Stream stream, bool) {
                       device.copy(schedule_.at(to), traffic_.*end, schedule_.bytes(to), CopyKind::on_device, stream);
                     },
                 .replayed = false});
}

void ProgramBase::add_departure(std::string name, Storage from, std::byte* PartTraffic::*end,
                                std::int64_t PartBytes::*bytes) {
  part_bytes_.*bytes = schedule_.bytes(from);
  schedule_.add({.name = std::move(name),
                 .uses = {{from}},
                 .issue =
                     [this, from, end](Device& device, Stream stream, bool) {
                       device.copy(traffic_.*end, schedule_.at(from), schedule_.bytes(from), CopyKind::on_device,
                                   stream);
                     },
                 .replayed = false});
}

Storage ProgramBase::add_activations_in(std::int64_t bytes) {
  const Storage to = schedule_.buffer("activations of the part before", bytes);
  add_arrival("activations arrive", to, &PartTraffic::activations_in, &PartBytes::activations_in);
  return to;
}
void ProgramBase::add_activations_out(Storage from) {
  add_departure("activations leave", from, &PartTraffic::activations_out, &PartBytes::activations_out);
}
Storage ProgramBase::add_gradients_in(std::int64_t bytes) {
  const Storage to = schedule_.buffer("gradient of the part after", bytes);
  add_arrival("gradients arrive", to, &PartTraffic::gradients_in, &PartBytes::gradients_in);
  return to;
}
void ProgramBase::add_gradients_out(Storage from) {
  add_departure("gradients leave", from, &PartTraffic::gradients_out, &PartBytes::gradients_out);
}

Storage ProgramBase::add_loss(std::string name, const CrossEntropy& node, const LogitsPlace& logits,
                              const std::string& gradient, bool top5, double bytes) {
  logits_ = logits;
  const std::int64_t rows = target_count();
  const int blocks = loss_blocks(device_.facts().size(), type_, rows);
  const Storage partial = schedule_.buffer("partial sums of the loss", size_in_bytes<PassSums>(blocks));
  // The counter must be zero between launches. Memory starts as zeros, and the kernel resets the counter.
  const Storage finished = schedule_.lasting("finished blocks of the loss", sizeof(unsigned));
  const Storage d_logits = training_ ? schedule_.buffer(gradient, rows * logits.stride * bytes_of(type_)) : -1;
  const float smoothing = training_ ? static_cast<float>(node.label_smoothing) : 0.0f;
  Command command = kernel_command(
      std::move(name), {{logits.storage}, {partial, true}, {finished, true}, {d_logits, true}}, [=, this](bool) {
        return launch_of(type_, CrossEntropyArguments{.logits = schedule_.at<const float>(logits.storage),
                                                      .targets = schedule_.at<const std::int32_t>(targets_),
                                                      .gradient = schedule_.at(d_logits),
                                                      .partial = schedule_.at<PassSums>(partial),
                                                      .sums = sums(),
                                                      .finished = schedule_.at<unsigned>(finished),
                                                      .state = step_state(),
                                                      .samples = micro_batch_,
                                                      .length = sequence_,
                                                      .classes = static_cast<int>(logits.classes),
                                                      .stride = static_cast<int>(logits.stride),
                                                      .blocks = blocks,
                                                      .label_smoothing = smoothing,
                                                      .top5 = top5});
      });
  command.bytes = bytes;
  schedule_.add(std::move(command));
  return d_logits;
}

void ProgramBase::add_dropout(std::string name, const Dropout& node, std::int64_t units, Storage x, Storage y) {
  schedule_.add(kernel_command(std::move(name), {{x}, {y, true}}, [=, this](bool) {
    return launch_of(type_, DropoutArguments{.x = schedule_.at(x),
                                             .y = schedule_.at(y),
                                             .state = step_state(),
                                             .samples = micro_batch_,
                                             .length = sequence_,
                                             .units = units,
                                             .layer = node.layer,
                                             .probability = node.probability});
  }));
}

void ProgramBase::add_bias_gradient(const std::string& name, const Parameter& bias, Storage dy, std::int64_t rows,
                                    std::int64_t stride) {
  const auto columns = static_cast<int>(bias.count);
  const int blocks = column_sum_blocks(rows, columns);
  const Storage partial = schedule_.buffer(name + "'s sums", size_in_bytes<float>(std::int64_t{blocks} * columns));
  schedule_.add(kernel_command(name + "'s sums", {{dy}, {partial, true}}, [=, this](bool) {
    return launch_of(type_, ColumnSumPartsArguments{.x = schedule_.at(dy),
                                                    .partial = schedule_.at<float>(partial),
                                                    .rows = rows,
                                                    .columns = columns,
                                                    .stride = static_cast<int>(stride),
                                                    .blocks = blocks});
  }));
  const auto sum = [=, this, &bias](bool accumulate) {
    return launch_of(ColumnSumsArguments{.partial = schedule_.at<float>(partial),
                                         .sums = gradient(bias),
                                         .columns = columns,
                                         .blocks = blocks,
                                         .accumulate = accumulate});
  };
  schedule_.add(kernel_command(name, {{partial}}, sum, {bias.name}));
}

ProgramBase::TensorCopies ProgramBase::make_copies(const std::string& what, Storage own, bool own_is_fp32,
                                                   std::vector<TensorPlace> places) {
  const auto count = static_cast<int>(places.size());
  const std::int64_t blocks = place_blocks(places.data(), count);
  const Storage table = schedule_.lasting(what, size_in_bytes<TensorPlace>(count));
  return {own, table, own_is_fp32, std::move(places), blocks};
}

KernelLaunch ProgramBase::launch_copies(const TensorCopies& copies, Kernel direction, float* flat,
                                        bool accumulate) const {
  const CopyTensorsArguments arguments{.flat = flat,
                                       .own = schedule_.at(copies.own),
                                       .places = schedule_.at<const TensorPlace>(copies.table),
                                       .count = static_cast<int>(copies.places.size()),
                                       .accumulate = accumulate,
                                       .own_is_fp32 = copies.own_is_fp32};
  return launch_of(type_, direction, arguments, copies.blocks);
}

void ProgramBase::copy_in(Storage own, bool own_is_fp32, std::vector<TensorPlace> places) {
  if (places.empty()) return;
  copies_in_.push_back(make_copies("places of weights", own, own_is_fp32, std::move(places)));
}

void ProgramBase::copy_home(std::string name, Storage own, bool own_is_fp32, std::vector<TensorPlace> places,
                            std::vector<std::string> finishes) {
  copies_home_.push_back(make_copies("places of gradients", own, own_is_fp32, std::move(places)));
  const TensorCopies& copies = copies_home_.back();
  const auto launch = [this, &copies](bool accumulate) {
    return launch_copies(copies, Kernel::copy_tensors_home, gradients_, accumulate);
  };
  schedule_.add(kernel_command(std::move(name), {{copies.own}, {copies.table}}, launch, std::move(finishes)));
}

void ProgramBase::finish() {
  if (!training_) schedule_.begin_backward();
  schedule_.begin_weights();
  for (const TensorCopies& copies : copies_in_)
    schedule_.add(kernel_command("weights' copies", {{copies.own, true}, {copies.table}}, [this, &copies](bool) {
      // In this direction the kernel only reads the flat vector.
      return launch_copies(copies, Kernel::copy_tensors_in, const_cast<float*>(weights_), false);
    }));
  for (Command& command : weight_commands_) schedule_.add(std::move(command));
  if (offload_stretch_ > 0) {
    schedule_.offload({.device = rates_of(device_.facts(), math_),
                       .link = host_link_rate(device_.facts().compute_capability),
                       .stretch = offload_stretch_,
                       .least = options_.least_offload});
  }
  schedule_.plan(parameters_, options_.segment_elements);
}

std::vector<MemoryItem> ProgramBase::memory() const {
  std::int64_t lasting = 0;
  for (const ArenaPlan::Item& item : schedule_.arena().items())
    if (item.first < 0) lasting += item.bytes;
  const std::int64_t workspace = schedule_.bytes(schedule_.workspace());
  const std::string pass = pass_name(mode_);
  return {{pass + ": weights' own copies and staged input", lasting - round_up(workspace, Schedule::alignment)},
          {pass + ": cuDNN's workspace", round_up(workspace, Schedule::alignment)},
          {pass + ": activations and gradients of a micro-batch", schedule_.arena().bytes() - lasting}};
}

void ProgramBase::allocate() {
  memory_ = DeviceMemory(device_, schedule_.arena().bytes(), training_ ? "the training program" : "the evaluation");
  schedule_.bind(memory_.data<char>());
  if (const std::int64_t bytes = host_traffic().bytes; bytes > 0) {
    offloaded_ = std::make_unique<HostMemory<std::byte>>(device_, bytes);
    schedule_.bind_host(device_, offloaded_->data());
  }
  const Stream stream = device_.compute_stream();
  for (const auto* list : {&copies_in_, &copies_home_})
    for (const TensorCopies& copies : *list)
      device_.copy(schedule_.at(copies.table), copies.places.data(),
                   size_in_bytes<TensorPlace>(std::ssize(copies.places)), CopyKind::to_device, stream);
  wait_for(device_, stream, finished_, options_.poll);
  std::vector<WeightCopy> weights;
  for (const TensorCopies& copies : copies_in_)
    for (const TensorPlace& place : copies.places)
      weights.push_back({place, schedule_.at(copies.own), copies.own_is_fp32});
  weight_copies_ = std::make_shared<const std::vector<WeightCopy>>(std::move(weights));
}

void ProgramBase::set_weights(const Vector& weights) {
  if (weights_ != weights.data()) schedule_.forget_captured(Schedule::Part::weights);
  weights_ = weights.data();
  schedule_.run(device_, Schedule::Part::weights, false, options_.graphs, nullptr);
}

void ProgramBase::stage(const PassInput& input) {
  if (staged_ > taken_ + 1) throw Error("two passes are staged already: the third would overwrite the first");
  const Staged& slot = places_[staged_ % 2];
  if (staged_ > 1) device_.wait(copy_stream_, slot.consumed);
  if (input_bytes() > 0)
    device_.copy(schedule_.at(slot.inputs), input.inputs, input_bytes(), CopyKind::to_device, copy_stream_);
  device_.copy(schedule_.at(slot.targets), input.targets, size_in_bytes<std::int32_t>(target_count()),
               CopyKind::to_device, copy_stream_);
  device_.record(slot.copied, copy_stream_);
  ++staged_;
}

void ProgramBase::stage_again() {
  if (staged_ < 2 || staged_ > taken_ + 1) throw Error("stage_again() needs two earlier passes and room for one more");
  ++staged_;
}

void ProgramBase::forward(const PassContext& context) {
  if (taken_ == staged_) throw Error("forward() without a staged pass");
  const Stream stream = device_.compute_stream();
  const Staged& slot = places_[taken_ % 2];
  const StepState state{.gradient_scale = context.gradient_scale,
                        .statistic_scale = context.statistic_scale,
                        .dropout_key = context.dropout_key,
                        .step = context.step,
                        .first_row = context.first_row};
  state_ring_.upload(&state, 1, schedule_.at(state_), options_.poll);
  device_.wait(stream, slot.copied);
  // Replayed kernels read the targets at one fixed address.
  device_.copy(schedule_.at(targets_), schedule_.at(slot.targets), size_in_bytes<std::int32_t>(target_count()),
               CopyKind::on_device, stream);
  before_forward(context);
  schedule_.run(device_, Schedule::Part::forward, false, options_.graphs, nullptr);
  device_.record(slot.consumed, stream);
  ++taken_;
  // After this wait the caller may overwrite its buffers.
  device_.synchronize(slot.copied, options_.poll);
}

void ProgramBase::close_sums() {
  if (closed_) throw Error("close_sums() was called twice without take_sums()");
  const Stream stream = device_.compute_stream();
  device_.copy(host_sums_.data(), sums(), size_in_bytes<PassSums>(1), CopyKind::to_host, stream);
  device_.zero(sums(), size_in_bytes<PassSums>(1), stream);
  device_.record(sums_closed_, stream);
  closed_ = true;
}

LossSums ProgramBase::take_sums() {
  if (!closed_) close_sums();
  device_.synchronize(sums_closed_, options_.poll);
  closed_ = false;
  const PassSums& all = *host_sums_.data();
  return {.loss = all.loss, .correct = all.correct, .correct5 = all.correct5, .targets = all.targets};
}

void ProgramBase::backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) {
  if (gradients_ != gradients.data()) schedule_.forget_captured(Schedule::Part::backward);
  gradients_ = gradients.data();
  schedule_.run(device_, Schedule::Part::backward, accumulate, options_.graphs, &hooks);
}

std::vector<float> ProgramBase::fetch(const float* values, std::int64_t count, float* host) const {
  const Stream stream = device_.compute_stream();
  device_.copy(host, values, size_in_bytes<float>(count), CopyKind::to_host, stream);
  wait_for(device_, stream, finished_, options_.poll);
  return {host, host + count};
}

std::vector<float> ProgramBase::fetch(Storage storage, std::int64_t count) const {
  return fetch(schedule_.at<const float>(storage), count, HostMemory<float>(device_, count).data());
}

std::vector<float> ProgramBase::logits(std::int64_t row, std::int64_t position) const {
  const float* from = schedule_.at<const float>(logits_.storage) + (position * micro_batch_ + row) * logits_.stride;
  return fetch(from, logits_.classes, host_logits_.data());
}

std::int64_t least_bytes_per_sample(const Graph& graph, Precision precision) {
  if (graph.offloads()) return 0;  // the micro-batch decides how much is offloaded
  std::int64_t elements = 0;
  for (const Node& node : graph.nodes())
    if (!node.recomputed &&
        (std::holds_alternative<Convolution>(node.operation) || std::holds_alternative<Lstm>(node.operation)))
      elements += graph.sequence() * node.output.size();
  return elements * bytes_of(type_of(precision));
}

std::int64_t largest_micro_batch(const PassDemand& demand, std::int64_t room, std::int64_t least_bytes,
                                 const std::function<std::int64_t(std::int64_t)>& program_bytes) {
  const std::int64_t unit = std::max<std::int64_t>(1, demand.group), units = demand.rows / unit;
  for (std::int64_t parts = 1; parts < units; ++parts) {
    const std::int64_t samples = units / parts * unit;
    if (units % parts == 0 && samples * least_bytes <= room && program_bytes(samples) <= room) return samples;
  }
  return unit;
}

}  // namespace ringtrain::cuda
