#include "backend/cuda/lstm/program.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "backend/cuda/program/base.h"
#include "backend/cuda/program/operation.h"
#include "backend/cuda/program/schedule.h"
#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain::cuda {

namespace {

// Holds one recurrent call and its storages. Sequences are [length, batch, features].
struct Call {
  const RnnPlan* plan = nullptr;
  std::size_t first = 0, count = 0;  // layers
  Storage x = -1, y = -1, reserve = -1, weights = -1, d_weights = -1;
  std::string name;
};

class LstmProgram : public ProgramBase {
 public:
  LstmProgram(Device& device, const BackendOptions& options, const Graph& graph, std::int64_t micro_batch,
              Precision precision, PassMode mode, int slots)
      : ProgramBase(device, options, graph, micro_batch, precision, mode, slots),
        model_(lstm_model(graph)),
        rows_(sequence_ * micro_batch),
        symbols_(round_up(model_.vocabulary, 8)),
        width_(round_up(model_.dense.output, 8)),
        dense_(dense_products(type_, math_, rows_, model_.dense.input, width_, Type::fp32)) {
    choose_calls();
    if (!calls_.empty()) add_state_in();
    Storage x = model_.is_first ? add_symbols() : add_activations_in(sequence_bytes(model_.hidden));
    for (Call& call : calls_) {
      enter(call);
      x = add_forward(call, x);
    }
    schedule_.enter(-1);
    if (model_.is_last) {
      const LogitsPlace logits = add_dense(x);
      logits_gradient_ = add_loss("cross-entropy", model_.loss, logits, "logits' gradient", false,
                                  static_cast<double>(rows_ * width_ * (4 + bytes_of(type_))));
    } else {
      add_activations_out(x);
    }
    if (!calls_.empty()) add_state_out();
    if (training_) {
      schedule_.begin_backward();
      Storage dy = model_.is_last ? add_dense_backward(x) : add_gradients_in(sequence_bytes(model_.hidden));
      for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
        enter(*call);
        dy = add_backward(*call, dy);
      }
      schedule_.enter(-1);
      if (!model_.is_first) add_gradients_out(dy);
    }
    finish();
  }

 protected:
  void before_forward(const PassContext& context) override { carried_ = context.state; }

 private:
  std::int64_t sequence_bytes(std::int64_t features) const { return rows_ * features * bytes_of(type_); }
  std::int64_t state_elements(std::size_t layers) const {
    return static_cast<std::int64_t>(layers) * micro_batch_ * model_.hidden;
  }
  std::int64_t packed_bytes() const {
    return 2 * state_elements(model_.layers.size()) * static_cast<std::int64_t>(sizeof(float));
  }
  // Returns the address of the part of a state that belongs to the layers from `call.first` on.
  void* state_of(Storage state, const Call& call) const {
    return schedule_.at<char>(state) + state_elements(call.first) * bytes_of(type_);
  }

  void choose_calls();
  // A call for several layers is recomputed only when all of its layers are. Recomputing some of them would need other
  // calls, which could round in another way.
  void enter(const Call& call) {
    const auto first = model_.recomputed.begin() + static_cast<std::ptrdiff_t>(call.first);
    const bool all = std::all_of(first, first + static_cast<std::ptrdiff_t>(call.count), std::identity());
    schedule_.enter(training_ && all ? static_cast<int>(call.first) : -1);
  }
  void add_state_in();
  Storage add_symbols();
  Storage add_forward(Call& call, Storage x);
  LogitsPlace add_dense(Storage x);
  void add_state_out();
  Storage add_dense_backward(Storage x);
  Storage add_backward(Call& call, Storage dy);
  void add_matmul(std::string name, const DnnOperation& operation, Storage a, Storage b, Storage bias, Storage y);
  // Returns the place of a parameter [rows, columns] of the dense layer, at the beginning of the program's own copy.
  TensorPlace place_of(const std::string& parameter, std::int64_t rows, std::int64_t columns) const;
  StateArguments state_arguments(Storage packed, Storage h, Storage c) const;

  const LstmModel model_;
  const std::int64_t rows_;             // number of positions: sequence x micro-batch
  const std::int64_t symbols_, width_;  // padded vocabulary, and padded classes
  const DenseProducts dense_;
  std::vector<Call> calls_;
  float* carried_ = nullptr;   // the carried state of the current pass in host memory; null: none
  std::vector<bool> carries_;  // one per slot: whether h0 and c0 are not all zeros
  Storage h0_ = -1, c0_ = -1, hn_ = -1, cn_ = -1, packed_ = -1;
  Storage dense_weights_ = -1, logits_gradient_ = -1;
};

void LstmProgram::choose_calls() {
  const auto layers = static_cast<std::int64_t>(model_.layers.size());
  if (layers == 0) return;
  const RnnOperation stack{.layers = layers,
                           .input = model_.is_first ? symbols_ : model_.hidden,
                           .hidden = model_.hidden,
                           .length = sequence_,
                           .batch = micro_batch_,
                           .type = type_,
                           .math = math_,
                           .training = training_};
  // The random bits of cuDNN's dropout between layers cannot depend on the position in the batch.
  const bool joinable = !training_ || std::ranges::all_of(model_.dropouts.begin(), model_.dropouts.end() - 1,
                                                          [](const Dropout& d) { return d.probability == 0; });
  const std::vector<const RnnPlan*> plans = choose_lstm_plans(device_, *options_.fusions, stack, joinable);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    Call call{.plan = plans[i], .first = i, .count = plans.size() == 1 ? model_.layers.size() : 1, .name = {}};
    call.name = call.count > 1 ? "lstm layers" : cat("lstm layer ", i);
    calls_.push_back(std::move(call));
  }
}

// The address of the carried state differs from pass to pass. When no state is carried, zeros stay in place.
void LstmProgram::add_state_in() {
  carries_.resize(static_cast<std::size_t>(schedule_.slots()));
  const std::int64_t state_bytes = state_elements(model_.layers.size()) * bytes_of(type_);
  h0_ = schedule_.per_slot("hidden state before", state_bytes);
  c0_ = schedule_.per_slot("cell state before", state_bytes);
  hn_ = schedule_.buffer("hidden state after", state_bytes);
  cn_ = schedule_.buffer("cell state after", state_bytes);
  packed_ = schedule_.buffer("carried state on its way in", packed_bytes());
  schedule_.add({.name = "carried state in",
                 .uses = {{packed_, true}, {h0_, true}, {c0_, true}},
                 .issue =
                     [this, state_bytes](Device& device, Stream stream, bool) {
                       const auto slot = static_cast<std::size_t>(schedule_.slot());
                       if (carried_ != nullptr) {
                         device.copy(schedule_.at(packed_), carried_, packed_bytes(), CopyKind::to_device, stream);
                         device.launch(launch_of(type_, Kernel::state_in, state_arguments(packed_, h0_, c0_)), stream);
                       } else if (carries_[slot]) {
                         device.zero(schedule_.at(h0_), state_bytes, stream);
                         device.zero(schedule_.at(c0_), state_bytes, stream);
                       }
                       carries_[slot] = carried_ != nullptr;
                     },
                 .replayed = false});
}

Storage LstmProgram::add_symbols() {
  const Storage x = schedule_.buffer("one-hot symbols", sequence_bytes(symbols_));
  add_input_command("one-hot", {{x, true}}, [this, x](Device& device, Stream stream, const std::uint8_t* symbols) {
    const OneHotArguments arguments{.symbols = symbols,
                                    .output = schedule_.at(x),
                                    .samples = micro_batch_,
                                    .length = sequence_,
                                    .padded = symbols_};
    device.launch(launch_of(type_, arguments), stream);
  });
  return x;
}

StateArguments LstmProgram::state_arguments(Storage packed, Storage h, Storage c) const {
  return {.packed = schedule_.at<float>(packed),
          .h = schedule_.at(h),
          .c = schedule_.at(c),
          .samples = micro_batch_,
          .layers = std::ssize(model_.layers),
          .hidden = model_.hidden};
}

void LstmProgram::add_state_out() {
  const Storage packed = schedule_.buffer("carried state on its way out", packed_bytes());
  schedule_.add({.name = "carried state out",
                 .uses = {{hn_}, {cn_}, {packed, true}},
                 .issue =
                     [this, packed](Device& device, Stream stream, bool) {
                       if (carried_ == nullptr) return;
                       device.launch(launch_of(type_, Kernel::state_out, state_arguments(packed, hn_, cn_)), stream);
                       device.copy(carried_, schedule_.at(packed), packed_bytes(), CopyKind::to_host, stream);
                     },
                 .replayed = false});
}

// Adds a recurrent call. Returns the storage that the next layer reads.
Storage LstmProgram::add_forward(Call& call, Storage x) {
  const RnnPlan& plan = *call.plan;
  call.x = x;
  call.y = schedule_.buffer(call.name + " output", sequence_bytes(model_.hidden));
  call.reserve = schedule_.buffer(call.name + " reserve", plan.reserve_bytes());
  call.weights = schedule_.lasting(call.name + " weights", plan.weight_bytes());
  schedule_.workspace(plan.workspace_bytes());
  const std::span<const Lstm> layers(model_.layers.data() + call.first, call.count);
  copy_in(call.weights, type_ == Type::fp32, lstm_places(plan, layers, parameters_));
  schedule_.add({.name = call.name,
                 .uses = {{x},
                          {call.weights},
                          {h0_},
                          {c0_},
                          {call.y, true},
                          {call.reserve, true},
                          {hn_, true},
                          {cn_, true},
                          {schedule_.workspace(), true}},
                 .issue =
                     [this, &call](Device& device, Stream stream, bool) {
                       device.run_forward(*call.plan,
                                          {.x = schedule_.at(call.x),
                                           .weights = schedule_.at(call.weights),
                                           .h0 = state_of(h0_, call),
                                           .c0 = state_of(c0_, call),
                                           .y = schedule_.at(call.y),
                                           .hn = state_of(hn_, call),
                                           .cn = state_of(cn_, call),
                                           .workspace = schedule_.at(schedule_.workspace()),
                                           .reserve = schedule_.at(call.reserve)},
                                          stream);
                     },
                 .flops = plan.operation().flops()});
  const Dropout& dropout = model_.dropouts[call.first + call.count - 1];
  if (!training_ || dropout.probability == 0) return call.y;
  const Storage dropped = schedule_.buffer(call.name + " output with dropout", sequence_bytes(model_.hidden));
  add_dropout(call.name + " dropout", dropout, model_.hidden, call.y, dropped);
  return dropped;
}

// `bias` is -1 when there is none.
void LstmProgram::add_matmul(std::string name, const DnnOperation& operation, Storage a, Storage b, Storage bias,
                             Storage y) {
  options_.fusions->choose(device_, only_way(name, {operation}));
  std::vector<Operand> operands = {{DnnRole::a, {a, 0}}, {DnnRole::b, {b, 0}}, {DnnRole::y, {y, 0}, 0, true}};
  if (bias >= 0) operands.push_back({DnnRole::bias, {bias, 0}});
  const DnnPlan& plan = plan_of(device_, name, operation);
  add_operation(schedule_, &plan, std::move(name), operation, 1, operands);
}

// Adds the logits at every position. The weights are [classes, hidden] in T, and the rows that pad the classes are
// zero.
LogitsPlace LstmProgram::add_dense(Storage x) {
  const Dense& dense = model_.dense;
  dense_weights_ = schedule_.lasting("dense weights", width_ * dense.input * bytes_of(type_));
  const Storage bias = schedule_.lasting("dense bias", width_ * bytes_of(Type::fp32));
  copy_in(dense_weights_, type_ == Type::fp32, {place_of(dense.weight, dense.output, dense.input)});
  copy_in(bias, true, {place_of(dense.bias, 1, dense.output)});

  const std::int64_t bytes = rows_ * width_ * bytes_of(Type::fp32);
  const Storage y = training_ ? schedule_.buffer("logits", bytes) : schedule_.lasting("logits", bytes);
  const LogitsPlace logits{.storage = y, .classes = dense.output, .stride = width_};
  DnnOperation with_bias = dense_.forward;
  with_bias.epilogue = Epilogue::bias;
  const auto traffic = static_cast<double>(bytes);
  const auto way = [](std::string name, const DnnOperation& operation, double moved) {
    return FusionSite::Way{.name = std::move(name), .operations = {operation}, .bytes = moved};
  };
  const FusionSite site{
      .name = "dense layer",
      .ways = {way("bias in the epilogue", with_bias, traffic), way("separate", dense_.forward, 3 * traffic)}};
  if (options_.fusions->choose(device_, site) == 0) {
    add_matmul("dense", with_bias, x, dense_weights_, bias, y);
    return logits;
  }
  add_matmul("dense", dense_.forward, x, dense_weights_, -1, y);
  schedule_.add(kernel_command("dense bias", {{bias}, {y, true}}, [=, this](bool) {
    return launch_of(Type::fp32, ActivateArguments{.x = schedule_.at(y),
                                                   .bias = schedule_.at<const float>(bias),
                                                   .y = schedule_.at(y),
                                                   .mask = nullptr,
                                                   .rows = rows_,
                                                   .channels = static_cast<int>(width_),
                                                   .relu = false});
  }));
  return logits;
}

TensorPlace LstmProgram::place_of(const std::string& parameter, std::int64_t rows, std::int64_t columns) const {
  const auto width = static_cast<int>(columns);
  return {.flat_offset = parameters_.find(parameter).offset, .outer = rows, .inner = width, .padded = width};
}

// Returns the gradient of the dense layer's input. The gradient of its weights is in fp32, with padded classes.
Storage LstmProgram::add_dense_backward(Storage x) {
  const Dense& dense = model_.dense;
  const Storage d_weights = schedule_.buffer("dense weights' gradient", width_ * dense.input * bytes_of(Type::fp32));
  add_matmul("dense weight gradient", dense_.weight_gradient, logits_gradient_, x, -1, d_weights);
  add_bias_gradient("dense bias gradient", parameters_.find(dense.bias), logits_gradient_, rows_, width_);
  copy_home("gradient of the dense weights, to its place", d_weights, true,
            {place_of(dense.weight, dense.output, dense.input)}, {dense.weight});
  const Storage dx = schedule_.buffer("dense input gradient", sequence_bytes(dense.input));
  add_matmul("dense data gradient", dense_.data_gradient, logits_gradient_, dense_weights_, -1, dx);
  return dx;
}

// Returns the gradient of the call's input, or -1 when the input is the symbols. The gradient of the weights is of type
// T, so it starts at zero in every micro-step. The fp32 flat vector accumulates over micro-steps.
Storage LstmProgram::add_backward(Call& call, Storage dy) {
  const RnnPlan& plan = *call.plan;
  const Dropout& dropout = model_.dropouts[call.first + call.count - 1];
  if (dropout.probability > 0) add_dropout(call.name + " dropout backward", dropout, model_.hidden, dy, dy);
  call.d_weights = schedule_.buffer(call.name + " weights' gradient", plan.weight_bytes());
  const Storage dx = call.first == 0 && model_.is_first
                         ? -1
                         : schedule_.buffer(call.name + " input gradient", sequence_bytes(model_.hidden));
  schedule_.add({.name = call.name + " backward",
                 .uses = {{call.x},
                          {call.weights},
                          {h0_},
                          {c0_},
                          {call.y},
                          {dy},
                          {call.reserve, true},
                          {dx, true},
                          {call.d_weights, true},
                          {schedule_.workspace(), true}},
                 .issue =
                     [this, &call, dy, dx](Device& device, Stream stream, bool) {
                       device.zero(schedule_.at(call.d_weights), call.plan->weight_bytes(), stream);
                       device.run_backward(*call.plan,
                                           {.x = schedule_.at(call.x),
                                            .weights = schedule_.at(call.weights),
                                            .h0 = state_of(h0_, call),
                                            .c0 = state_of(c0_, call),
                                            .y = schedule_.at(call.y),
                                            .dy = schedule_.at(dy),
                                            .dx = schedule_.at(dx),
                                            .dweights = schedule_.at(call.d_weights),
                                            .workspace = schedule_.at(schedule_.workspace()),
                                            .reserve = schedule_.at(call.reserve)},
                                           stream);
                     },
                 .flops = 2 * plan.operation().flops()});
  const std::span<const Lstm> layers(model_.layers.data() + call.first, call.count);
  std::vector<std::string> finished;
  for (const Lstm& layer : layers)
    for (const std::string& name : {layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh})
      finished.push_back(name);
  copy_home(call.name + " gradient home", call.d_weights, type_ == Type::fp32, lstm_places(plan, layers, parameters_),
            std::move(finished));
  return dx;
}

}  // namespace

std::unique_ptr<Program> make_lstm_program(Device& device, const BackendOptions& options, const Graph& graph,
                                           std::int64_t micro_batch, Precision precision, PassMode mode, int slots) {
  return std::make_unique<LstmProgram>(device, options, graph, micro_batch, precision, mode, slots);
}

}  // namespace ringtrain::cuda
