#include "backend/cuda/lstm_program.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/lstm_choice.h"
#include "backend/cuda/lstm_model.h"
#include "backend/cuda/lstm_weights.h"
#include "backend/cuda/program_base.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

// One recurrent call and its memory. Sequences are [length, batch, features].
struct Call {
  const RnnPlan* plan = nullptr;
  std::size_t first = 0, count = 0;  // layers
  Storage x = -1, y = -1, reserve = -1, weights = -1, d_weights = -1;
  std::string name;
};

class LstmProgram : public ProgramBase {
 public:
  LstmProgram(Device& device, const BackendOptions& options, const Graph& graph, std::int64_t micro_batch,
              Precision precision, PassMode mode)
      : ProgramBase(device, options, graph, micro_batch, precision, mode),
        model_(lstm_model(graph)),
        rows_(sequence_ * micro_batch),
        symbols_(round_up(model_.vocabulary, 8)),
        width_(round_up(model_.dense.output, 8)) {
    choose_calls();
    Storage x = add_input();
    for (Call& call : calls_) x = add_forward(call, x);
    add_dense(x);
    add_loss();
    add_state_out();
    if (training_) {
      schedule_.begin_backward();
      Storage dy = add_dense_backward(x);
      for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) dy = add_backward(*call, dy);
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
  // A state's part for the layers from `call.first` on.
  void* state_of(Storage state, const Call& call) const {
    return schedule_.at<char>(state) + state_elements(call.first) * bytes_of(type_);
  }
  FusionTable& fusions() { return options_.fusions != nullptr ? *options_.fusions : own_fusions_; }

  void choose_calls();
  Storage add_input();
  Storage add_forward(Call& call, Storage x);
  Storage add_dropout(Storage x, Storage y, const Dropout& dropout, const char* name);
  void add_dense(Storage x);
  void add_loss();
  void add_state_out();
  Storage add_dense_backward(Storage x);
  Storage add_backward(Call& call, Storage dy);
  void add_matmul(std::string name, const DnnOperation& operation, Storage a, Storage b, Storage bias, Storage y);
  StateArguments state_arguments(Storage packed, Storage h, Storage c) const;

  const LstmModel model_;
  const std::int64_t rows_;            // positions: sequence x micro-batch
  const std::int64_t symbols_, width_;  // vocabulary and classes, padded
  FusionTable own_fusions_;
  std::vector<Call> calls_;
  float* carried_ = nullptr;  // host, of the pass under way; null: none
  bool zero_state_ = true;    // h0 and c0 hold zeros
  Storage h0_ = -1, c0_ = -1, hn_ = -1, cn_ = -1, packed_ = -1;
  Storage dense_weights_ = -1, dense_bias_ = -1, logits_gradient_ = -1;
};

void LstmProgram::choose_calls() {
  const auto layers = static_cast<std::int64_t>(model_.layers.size());
  const RnnOperation stack{.layers = layers,
                           .input = symbols_,
                           .hidden = model_.hidden,
                           .length = sequence_,
                           .batch = micro_batch_,
                           .type = type_,
                           .math = math_,
                           .training = training_};
  // cuDNN's own dropout between layers cannot be keyed by place.
  const bool joinable = !training_ || std::ranges::all_of(model_.dropouts.begin(), model_.dropouts.end() - 1,
                                                          [](const Dropout& d) { return d.probability == 0; });
  const std::vector<const RnnPlan*> plans = choose_lstm_plans(device_, fusions(), stack, joinable);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    Call call{.plan = plans[i], .first = i, .count = plans.size() == 1 ? model_.layers.size() : 1, .name = {}};
    call.name = call.count > 1 ? "lstm layers" : cat("lstm layer ", i);
    calls_.push_back(std::move(call));
  }
}

// Symbols and carried state. The state's address differs from pass to pass; where none is carried, zeros stay in place.
Storage LstmProgram::add_input() {
  const std::int64_t state_bytes = state_elements(model_.layers.size()) * bytes_of(type_);
  h0_ = schedule_.lasting("hidden state before", state_bytes);
  c0_ = schedule_.lasting("cell state before", state_bytes);
  hn_ = schedule_.buffer("hidden state behind", state_bytes);
  cn_ = schedule_.buffer("cell state behind", state_bytes);
  packed_ = schedule_.buffer("carried state on its way in", packed_bytes());
  schedule_.add({.name = "carried state in",
                 .uses = {{packed_, true}, {h0_, true}, {c0_, true}},
                 .issue =
                     [this, state_bytes](Device& device, Stream stream, bool) {
                       if (carried_ != nullptr) {
                         device.copy(schedule_.at(packed_), carried_, packed_bytes(), CopyKind::to_device, stream);
                         device.launch(launch_of(type_, Kernel::state_in, state_arguments(packed_, h0_, c0_)), stream);
                       } else if (!zero_state_) {
                         device.zero(schedule_.at(h0_), state_bytes, stream);
                         device.zero(schedule_.at(c0_), state_bytes, stream);
                       }
                       zero_state_ = carried_ == nullptr;
                     },
                 .replayed = false});

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

// Returns what the next layer reads.
Storage LstmProgram::add_forward(Call& call, Storage x) {
  const RnnPlan& plan = *call.plan;
  call.x = x;
  call.y = schedule_.buffer(call.name + " output", sequence_bytes(model_.hidden));
  call.reserve = schedule_.buffer(call.name + " reserve", plan.reserve_bytes());
  call.weights = schedule_.lasting(call.name + " weights", plan.weight_bytes());
  schedule_.workspace(plan.workspace_bytes());
  const std::span<const Lstm> layers(model_.layers.data() + call.first, call.count);
  copy_in(call.weights, type_ == Type::fp32, lstm_places(plan, layers, parameters_, 0));
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
  add_dropout(call.name + " dropout", dropout, call.y, dropped);
  return dropped;
}

// Forward and backward are the same: kept units are scaled. In place where x is y.
void LstmProgram::add_dropout(std::string name, const Dropout& dropout, Storage x, Storage y) {
  schedule_.add({.name = std::move(name),
                 .uses = {{x}, {y, true}},
                 .issue =
                     [this, &dropout, x, y](Device& device, Stream stream, bool) {
                       const DropoutArguments arguments{.x = schedule_.at(x),
                                                        .y = schedule_.at(y),
                                                        .state = step_state(),
                                                        .samples = micro_batch_,
                                                        .length = sequence_,
                                                        .units = model_.hidden,
                                                        .layer = dropout.layer,
                                                        .probability = dropout.probability};
                       device.launch(launch_of(type_, arguments), stream);
                     },
                 .bytes = 2.0 * static_cast<double>(sequence_bytes(model_.hidden))});
}

DnnOperation LstmProgram::matmul(std::int64_t m, std::int64_t n, std::int64_t k) const {
  return {.kind = DnnKind::matmul, .type = type_, .math = math_, .k = k, ...};
}
