#include "backend/cpu/sequence_operations.h"

#include <algorithm>

#include "backend/cpu/classifier_operation.h"
#include "backend/cpu/lstm_operation.h"
#include "backend/cpu/part_ends.h"
#include "base/error.h"

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
Operations join_sequences(const Graph& graph, const SequenceContext& context) {
  const std::vector<Node>& nodes = graph.nodes();
  const std::int64_t layers =
      std::ranges::count_if(nodes, [](const Node& node) { return std::holds_alternative<Lstm>(node.operation); });
  const auto expect = [](bool is_so) {
    if (!is_so) throw Error("the CPU backend compiles LSTM layers that are followed by one dense layer");
  };
  Operations result;
  Feature* x = nullptr;  // what the next operation reads; null: the symbols
  std::int64_t layer = 0;
  bool ends = false;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (const auto* lstm = std::get_if<Lstm>(&nodes[i].operation)) {
      const Dropout* dropout = i + 1 < nodes.size() ? std::get_if<Dropout>(&nodes[i + 1].operation) : nullptr;
      Feature* y = result.make_feature(nodes[i].output);
      result.add(std::make_unique<LstmOperation<T>>(context, *lstm, dropout, nodes[i].recomputed,
                                                    StatePlace{layer++, layers}, x, y));
      x = y;
    } else if (const auto* dense = std::get_if<Dense>(&nodes[i].operation)) {
      expect(x != nullptr);
      result.add(std::make_unique<ClassifierOperation<T>>(context, *dense, x));
      ends = true;
    } else if (std::holds_alternative<PartInput>(nodes[i].operation)) {
      x = result.make_feature(nodes[i].output);
      result.add(std::make_unique<PartInputOperation>(context, make_sequence_layout<T>(context, x), x, result.bytes));
    } else if (std::holds_alternative<PartOutput>(nodes[i].operation)) {
      expect(x != nullptr);
      auto layout = make_sequence_layout<T>(context, x);
      x->row_elements = x->shape.channels;
      x->forward = layout->make_storage("output of the part", PartValue::activation);
      result.add(std::make_unique<PartOutputOperation>(context, std::move(layout), x, result.bytes));
      ends = true;
    }
  }
  expect(ends);
  return result;
}

}  // namespace

Operations sequence_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context) {
  const SequenceContext own{context, row_blocks(options.micro_batch, graph.sequence(), options.threads)};
  return options.precision == Precision::fp32 ? join_sequences<float>(graph, own)
                                              : join_sequences<BFloat16>(graph, own);
}

}  // namespace ringtrain::cpu
