#include "backend/cpu/lstm_program.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "backend/cpu/classifier_operation.h"
#include "backend/cpu/lstm_operation.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/part_ends.h"
#include "base/error.h"

namespace ringtrain::cpu {

RowBlocks row_blocks(std::int64_t rows, std::int64_t sequence, int threads) {
  constexpr std::int64_t most = 64;
  RowBlocks b;
  b.rows = rows;
  b.sequence = sequence;
  b.threads = static_cast<int>(std::min<std::int64_t>(threads, rows));
  const std::int64_t per_thread = (rows + b.threads * most - 1) / (b.threads * most);
  b.blocks = per_thread * b.threads;
  b.block_rows = (rows + b.blocks - 1) / b.blocks;
  return b;
}

namespace {

template <class T>
class LstmProgram : public Program {
 public:
  LstmProgram(const Graph& graph, std::int64_t micro_batch, PassMode mode, int threads, Isa isa, MemoryCount count,
              int slots)
      : parameters_(graph.parameters()),
        blocks_(row_blocks(micro_batch, graph.sequence(), threads)),
        training_(mode == PassMode::training),
        threads_(threads),
        slots_(slots),
        count_(std::move(count)),
        kept_(static_cast<std::size_t>(slots)) {
    build(graph, OperationContext{&parameters_, blocks_, &kernels(isa), training_});
    plan();
  }

  std::int64_t micro_batch() const override { return blocks_.rows; }

  std::vector<MemoryItem> memory() const override {
    std::int64_t lasting = 0;
    for (const ArenaPlan::Item& item : arena_.items())
      if (item.first < 0) lasting += item.bytes;
    const std::string pass = training_ ? "training" : "evaluation";
    return {{pass + ": weights' own copies and scratch", lasting},
            {pass + ": activations and gradients of a micro-batch", arena_.bytes() - lasting}};
  }

  void allocate() override {
    memory_ = Memory(arena_.bytes(), count_);
    bind(0);
  }

  void select(int slot) override {
    if (slot == slot_) return;
    kept_[static_cast<std::size_t>(slot_)] = pass_;
    pass_ = kept_[static_cast<std::size_t>(slot)];
    slot_ = slot;
    bind(slot);
  }
  void connect(const PartTraffic& traffic) override { traffic_ = traffic; }
  PartBytes part_bytes() const override {
    PartBytes bytes;
    if (input_) {
      bytes.activations_in = input_->activation_bytes();
      bytes.gradients_out = input_->gradient_bytes();
    }
    if (output_ != nullptr) {
      bytes.activations_out = output_->activation_bytes();
      bytes.gradients_in = output_->gradient_bytes();
    }
    return bytes;
  }

  void set_weights(const Vector& weights) override {
    const TeamSize team(threads_);
    for (auto& operation : operations_) operation->set_weights(weights.data());
  }

  void stage(const PassInput& input) override { staged_ = input; }

  void forward(const PassContext& context) override {
    const TeamSize team(threads_);
    const auto given = static_cast<std::size_t>(blocks_.rows * blocks_.sequence);
    const auto padded = static_cast<std::size_t>(blocks_.positions());
    std::memcpy(tokens_, staged_.inputs, given);
    std::memset(tokens_ + given, 0, padded - given);
    std::copy_n(staged_.targets, given, targets_);
    std::fill(targets_ + given, targets_ + padded, -1);
    pass_ = Pass{context, traffic_, tokens_, targets_, {}};
    if (input_) input_->arrive(traffic_.activations_in);
    for (auto& operation : operations_) operation->forward(pass_);
    sums_ += pass_.sums;
  }

  LossSums take_sums() override { return std::exchange(sums_, {}); }

  void backward(Vector& gradients, bool accumulate, const BackwardHooks& hooks) override {
    const TeamSize team(threads_);
    pass_.traffic = traffic_;
    for (auto operation = operations_.rbegin(); operation != operations_.rend(); ++operation) {
      (*operation)->backward(pass_, gradients.data(), accumulate, hooks.poll);
      if (hooks.ready) hooks.ready((*operation)->gradient_end());
    }
    if (input_) input_->leave(traffic_.gradients_out);
  }

  std::vector<float> logits(std::int64_t row, std::int64_t position) const override {
    return classifier_->logits(row, position);
  }

 private:
  // Dropout is part of the layer before it. The loss is part of the dense layer.
  // A part of a model may have PartInput instead of the symbols, and PartOutput instead of the dense layer.
  void build(const Graph& graph, const OperationContext& context) {
    const std::vector<Node>& nodes = graph.nodes();
    std::vector<LstmOperation<T>*> layers;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (const auto* node = std::get_if<Lstm>(&nodes[i].operation)) {
        const Dropout* dropout = i + 1 < nodes.size() ? std::get_if<Dropout>(&nodes[i + 1].operation) : nullptr;
        auto layer =
            std::make_unique<LstmOperation<T>>(context, *node, layers.empty() && !input_, dropout, nodes[i].recomputed);
        layers.push_back(layer.get());
        operations_.push_back(std::move(layer));
      } else if (const auto* dense = std::get_if<Dense>(&nodes[i].operation)) {
        auto classifier = std::make_unique<ClassifierOperation<T>>(context, *dense);
        classifier_ = classifier.get();
        operations_.push_back(std::move(classifier));
      } else if (std::holds_alternative<PartInput>(nodes[i].operation)) {
        input_.emplace(blocks_, nodes[i].output.channels);
      } else if (std::holds_alternative<PartOutput>(nodes[i].operation)) {
        auto output = std::make_unique<SequenceOutput<T>>(context, nodes[i].output.channels);
        output_ = output.get();
        operations_.push_back(std::move(output));
      }
    }
    if ((classifier_ == nullptr && output_ == nullptr) || (layers.empty() && !input_))
      throw Error("the CPU backend compiles LSTM layers that are followed by one dense layer");
    for (std::size_t i = 0; i < layers.size(); ++i)
      layers[i]->set_state_place(static_cast<std::int64_t>(i), static_cast<std::int64_t>(layers.size()));
    layers_ = std::move(layers);
  }

  // The port of an operation's input exists only after the operation is planned, so consumers are planned first.
  void plan() {
    const int n = static_cast<int>(operations_.size());
    const std::int64_t target_bytes = blocks_.positions() * static_cast<std::int64_t>(sizeof(std::int32_t));
    if (slots_ == 1) {
      tokens_buffer_ = arena_.add("symbols", blocks_.positions());
      targets_buffer_ = arena_.add("targets", target_bytes);
    } else {
      tokens_buffer_ = arena_.add("symbols", blocks_.positions(), 0, 2 * n + 1);
      targets_buffer_ = arena_.add("targets", target_bytes, 0, 2 * n + 1);
    }
    for (int i = n - 1; i >= 0; --i) operations_[static_cast<std::size_t>(i)]->plan(arena_, i + 1, 2 * n - i);
    for (std::size_t i = 0; i < layers_.size(); ++i)
      layers_[i]->set_output(i + 1 < layers_.size() ? layers_[i + 1]->input_port() : end_port());
    arena_.place(n + 1, slots_);
  }
  Port end_port() const { return output_ != nullptr ? output_->input_port() : classifier_->input_port(); }

  void bind(int slot) {
    const Arena arena(memory_.data(), arena_, slot);
    for (auto& operation : operations_) operation->bind(arena);
    arena.place(tokens_, tokens_buffer_);
    arena.place(targets_, targets_buffer_);
    if (input_) input_->bind(arena, layers_.empty() ? end_port() : layers_.front()->input_port());
  }

  ParameterTable parameters_;
  RowBlocks blocks_;
  bool training_;
  int threads_, slots_;
  MemoryCount count_;
  std::vector<std::unique_ptr<CpuOperation>> operations_;  // in order of execution
  std::vector<LstmOperation<T>*> layers_;
  ClassifierOperation<T>* classifier_ = nullptr;
  std::optional<SequenceInput<T>> input_;  // only if a part of a model begins with PartInput
  SequenceOutput<T>* output_ = nullptr;
  ArenaPlan arena_;
  Buffer tokens_buffer_, targets_buffer_;
  Memory memory_;
  std::uint8_t* tokens_ = nullptr;
  std::int32_t* targets_ = nullptr;
  PassInput staged_;
  LossSums sums_;
  PartTraffic traffic_;
  Pass pass_;               // the pass of the selected slot
  std::vector<Pass> kept_;  // the passes of the other slots
  int slot_ = 0;
};

}  // namespace

std::unique_ptr<Program> compile_lstm_program(const Graph& graph, std::int64_t micro_batch, Precision precision,
                                              PassMode mode, int threads, Isa isa, MemoryCount count, int slots) {
  if (precision == Precision::fp32)
    return std::make_unique<LstmProgram<float>>(graph, micro_batch, mode, threads, isa, std::move(count), slots);
  return std::make_unique<LstmProgram<BFloat16>>(graph, micro_batch, mode, threads, isa, std::move(count), slots);
}

}  // namespace ringtrain::cpu
