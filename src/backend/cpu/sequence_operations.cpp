// Turns the graph of a model of sequences into operations: sequence_operations() of operation.h.
#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "backend/cpu/classifier_operation.h"
#include "backend/cpu/lstm_operation.h"
#include "backend/cpu/operation.h"
#include "backend/cpu/part_ends.h"
#include "base/error.h"
#include "nn/graph.h"

namespace ringtrain::cpu {
namespace {

// Divides `rows` rows into blocks of at most 64 rows, with the same number of blocks for every thread. Measurements
// show that products of 32 or more rows run at full speed, and that the gates of such a block stay in the second-level
// cache.
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

template <class T>
class SequenceJoiner : GraphReader {
 public:
  SequenceJoiner(const Graph& graph, const SequenceContext& context)
      : GraphReader(graph), context_(context), feature_(graph.nodes().size()) {
    for (int i = 0; i < size(); ++i) {
      expect(consumers(i).size() <= 1);
      if (as<Lstm>(i) != nullptr) ++layers_;
    }
  }

  Operations join() {
    for (int i = 0; i < size(); ++i)
      std::visit([&](const auto& operation) { append(i, operation); }, node_at(i).operation);
    expect(ends_);
    return std::move(result_);
  }

 private:
  static void expect(bool is_so) {
    if (!is_so)
      throw Error("the CPU backend compiles LSTM layers on symbols, with dropout, that one dense layer follows");
  }
  Feature* make(int node) { return feature_[at(node)] = result_.make_feature(node_at(node).output); }
  // Returns what the node reads. Symbols have no feature: the first layer finds them in the pass.
  Feature* feature_before(int node) const {
    Feature* x = feature_[at(input(node))];
    expect(x != nullptr);
    return x;
  }

  void append(int, const TokenInput&) {}
  void append(int i, const PartInput&) {
    Feature* x = make(i);
    result_.add(std::make_unique<PartInputOperation>(context_, make_sequence_layout<T>(context_, x), x, result_.bytes));
  }
  void append(int i, const PartOutput&) {
    Feature* x = feature_before(i);
    auto layout = make_sequence_layout<T>(context_, x);
    x->row_elements = x->shape.channels;
    x->forward = layout->make_storage("output of the part", PartValue::activation);
    result_.add(std::make_unique<PartOutputOperation>(context_, std::move(layout), x, result_.bytes));
    end();
  }
  void append(int i, const Lstm& node) {
    const int dropout = consumer_that_is<Dropout>(i);
    Feature* x = as<TokenInput>(input(i)) != nullptr ? nullptr : feature_before(i);
    Feature* y = make(i);
    result_.add(std::make_unique<LstmOperation<T>>(context_, node, dropout < 0 ? nullptr : as<Dropout>(dropout),
                                                   node_at(i).recomputed, StatePlace{layer_++, layers_}, x, y));
  }
  // Dropout is part of the LSTM layer before it.
  void append(int i, const Dropout&) {
    expect(as<Lstm>(input(i)) != nullptr);
    feature_[at(i)] = feature_before(i);
  }
  void append(int i, const Dense& node) {
    expect(consumer_that_is<CrossEntropy>(i) >= 0);
    result_.add(std::make_unique<ClassifierOperation<T>>(context_, node, feature_before(i)));
    end();
  }
  // The loss is part of the dense layer before it.
  void append(int i, const CrossEntropy& node) {
    expect(as<Dense>(input(i)) != nullptr);
    if (node.label_smoothing != 0) throw Error("the CPU backend smooths no labels in a model of sequences");
  }
  template <class Other>
  void append(int, const Other&) {
    expect(false);
  }

  void end() {
    expect(!ends_);
    ends_ = true;
  }

  SequenceContext context_;
  std::vector<Feature*> feature_;  // by node; null while no operation has made it
  std::int64_t layer_ = 0, layers_ = 0;
  bool ends_ = false;  // whether the loss or the end of the part was compiled
  Operations result_;
};

}  // namespace

Operations sequence_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context) {
  const SequenceContext own{context, row_blocks(options.micro_batch, graph.sequence(), options.threads)};
  return options.precision == Precision::fp32 ? SequenceJoiner<float>(graph, own).join()
                                              : SequenceJoiner<BFloat16>(graph, own).join();
}

}  // namespace ringtrain::cpu
