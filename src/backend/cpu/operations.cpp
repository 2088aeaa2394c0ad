// Turns the graph of a model into operations: make_operations() of operations.h.
#include "backend/cpu/operations.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "backend/cpu/norm_statistics.h"
#include "base/error.h"
#include "nn/graph.h"

namespace ringtrain::cpu {
namespace {

// Compiles a model of images.
class ImageJoiner : GraphReader {
 public:
  ImageJoiner(const Graph& graph, const ImageContext& context)
      : GraphReader(graph), context_(context), feature_(graph.nodes().size()), statistics_(graph.nodes().size()) {
    for (int i = 0; i < size(); ++i)
      if (consumers(i).size() > 2)
        throw Error(cat("node ", i, " of the model has ", consumers(i).size(),
                        " consumers; the CPU backend supports at most two"));
  }

  Operations join() {
    for (int i = 0; i < size(); ++i) {
      block_ = node_at(i).recomputed && context_.training ? block_of(i) : -1;
      std::visit([&](const auto& operation) { append(i, operation); }, node_at(i).operation);
    }
    if (!ends_) throw Error("a model of images ends in a cross-entropy");
    return std::move(result_);
  }

 private:
  Feature* make(int node) { return feature_[at(node)] = result_.make_feature(node_at(node).output); }
  Feature* feature(int node) const { return feature_[at(node)]; }
  template <class Made>
  Made* keep(std::unique_ptr<Made> operation) {
    return result_.add(std::move(operation), block_);
  }

  // Returns whether a norm or an addition lies between this node and the convolution, or the input, before it.
  bool behind_norm(int node) const {
    for (int i = input(node);; i = input(i)) {
      if (as<Norm>(i) != nullptr || as<Add>(i) != nullptr) return true;
      if (node_at(i).inputs.empty() || as<Convolution>(i) != nullptr) return false;
    }
  }
  bool needs_vector(int node) const {
    return std::any_of(consumers(node).begin(), consumers(node).end(), [&](int c) {
      return as<Dense>(c) != nullptr || as<CrossEntropy>(c) != nullptr || as<Dropout>(c) != nullptr;
    });
  }
  void expect_map(int node, const char* what) const {
    if (feature(node)->vector) throw Error(cat("the CPU backend cannot apply ", what, " to a vector"));
  }

  void append(int i, const PartInput&) {
    Feature* y = make(i);
    y->vector = needs_vector(i);
    keep(make_part_input(context_, y, result_.bytes));
  }
  void append(int i, const PartOutput&) {
    keep(make_part_output(context_, feature(input(i)), result_.bytes));
    ends_ = true;
  }
  void append(int, const TokenInput&) { throw Error("a model reads symbols or images, not both"); }
  void append(int, const Lstm&) { throw Error("the CPU backend has no LSTM in a model of images"); }

  void append(int i, const ImageInput& node) {
    if (consumer_that_is<Convolution>(i) < 0)
      throw Error("the CPU backend reads images with one convolution, and nothing else");
    keep(make_pixels(context_, node, make(i)));
  }

  void append(int i, const Convolution& node) {
    expect_map(input(i), "convolution");
    const bool pixels = as<ImageInput>(input(i)) != nullptr;
    const int relu = consumer_that_is<Relu>(i);
    Feature* x = feature(input(i));
    Feature* y = make(i);
    if (relu >= 0) feature_[at(relu)] = y;
    keep(make_convolution(context_, node, relu >= 0, pixels, !pixels && behind_norm(i), x, y));
  }

  // Adds the steps that measure the statistics, directly after those that make x. If an addition or a ReLU follows, its
  // operation applies the norm.
  void append(int i, const Norm& node) {
    expect_map(input(i), "a norm");
    statistics_[at(i)] = keep(std::make_unique<NormStatistics>(context_, node, *feature(input(i))));
    if (consumer_that_is<Relu>(i) >= 0 || consumer_that_is<Add>(i) >= 0) return;
    apply(i, i, input(i), statistics_[at(i)], -1, nullptr);
  }

  void append(int i, const Relu&) {
    const int x = input(i);
    if (feature_[at(i)] != nullptr) return;  // the ReLU is part of a convolution or a dense layer
    if (as<Norm>(x) != nullptr && consumer(x) == i) return apply(i, i, input(x), statistics_[at(x)], -1, nullptr);
    if (as<Add>(x) != nullptr && consumer(x) == i) return add(x, i);
    expect_map(x, "a ReLU that does not follow a dense layer");
    apply(i, i, x, nullptr, -1, nullptr);
  }

  void append(int i, const Add&) {
    if (consumer_that_is<Relu>(i) < 0) add(i, i);
  }

  // Compiles the addition `node` with the ReLU `last` that follows it. Without a ReLU, last = node. The operation also
  // applies each norm whose only consumer is the addition.
  void add(int node, int last) {
    struct Operand {
      int feature;
      NormStatistics* norm;
    };
    const auto operand = [&](std::size_t which) {
      const int from = input(node, which);
      if (as<Norm>(from) != nullptr && consumer(from) == node) return Operand{input(from), statistics_[at(from)]};
      expect_map(from, "addition");
      return Operand{from, nullptr};
    };
    Operand a = operand(0), b = operand(1);
    if (a.norm == nullptr) std::swap(a, b);
    apply(last, node, a.feature, a.norm, b.feature, b.norm);
  }

  void apply(int last, int named, int x, NormStatistics* norm, int second, NormStatistics* norm2) {
    const std::string name = norm != nullptr ? norm->name() : cat("node ", named);
    Feature* values = feature(x);
    Feature* other = second >= 0 ? feature(second) : nullptr;
    Feature* y = make(last);
    y->read_again = std::any_of(consumers(last).begin(), consumers(last).end(),
                                [&](int c) { return as<Convolution>(c) != nullptr; });
    keep(make_norm(context_, name, values, norm, other, norm2, as<Relu>(last) != nullptr, y));
  }

  void append(int i, const MaxPool& node) {
    expect_map(input(i), "max pooling");
    Feature* x = feature(input(i));
    keep(make_max_pool(context_, node, x, make(i)));
  }
  void append(int i, const GlobalAveragePool&) { to_vector(i, true); }
  void append(int i, const Flatten&) { to_vector(i, false); }
  void to_vector(int i, bool average) {
    expect_map(input(i), "pooling");
    Feature* x = feature(input(i));
    keep(make_vector(context_, average, x, make(i)));
  }

  void expect_vector(int node, const char* what) const {
    if (!feature(node)->vector)
      throw Error(cat(what, " needs global average pooling or flattening before it on the CPU backend"));
    if (consumer(node) < 0)
      throw Error(cat("on the CPU backend, the vector before ", what, " may have only one consumer"));
  }
  void append(int i, const Dropout& node) {
    Feature* x = feature(input(i));
    if (x->vector || x->pixels() > 1) expect_vector(input(i), "dropout");
    if (context_.training)
      keep(make_dropout(context_, node, x, make(i)));
    else
      feature_[at(i)] = x;
  }
  void append(int i, const Dense& node) {
    expect_vector(input(i), "a dense layer");
    const int relu = consumer_that_is<Relu>(i);
    Feature* x = feature(input(i));
    Feature* y = make(i);
    if (relu >= 0) feature_[at(relu)] = y;
    keep(make_dense(context_, node, relu >= 0, consumer_that_is<CrossEntropy>(i) >= 0, x, y));
  }
  void append(int i, const CrossEntropy& node) {
    if (as<Dense>(input(i)) == nullptr || consumer(input(i)) < 0)
      throw Error("the CPU backend computes the cross-entropy of a dense layer's output only");
    keep(make_loss(context_, node, feature(input(i))));
    ends_ = true;
  }

  ImageContext context_;
  std::vector<Feature*> feature_;            // by node; null while no operation has made it
  std::vector<NormStatistics*> statistics_;  // by node
  int block_ = -1;                           // block of the node that is being compiled
  bool ends_ = false;                        // whether the loss or the end of the part was compiled
  Operations result_;
};

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

// Compiles a model of sequences.
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
  void append(int i, const PartInput&) { result_.add(make_part_input(context_, make(i), result_.bytes)); }
  void append(int i, const PartOutput&) {
    result_.add(make_part_output(context_, feature_before(i), result_.bytes));
    end();
  }
  void append(int i, const Lstm& node) {
    const int dropout = consumer_that_is<Dropout>(i);
    Feature* x = as<TokenInput>(input(i)) != nullptr ? nullptr : feature_before(i);
    Feature* y = make(i);
    result_.add(make_lstm(context_, {.node = node,
                                     .dropout = dropout < 0 ? Dropout{} : *as<Dropout>(dropout),
                                     .recomputed = node_at(i).recomputed,
                                     .place = {layer_++, layers_},
                                     .x = x,
                                     .y = y}));
  }
  // Dropout is part of the LSTM layer before it.
  void append(int i, const Dropout&) {
    expect(as<Lstm>(input(i)) != nullptr);
    feature_[at(i)] = feature_before(i);
  }
  void append(int i, const Dense& node) {
    expect(consumer_that_is<CrossEntropy>(i) >= 0);
    result_.add(make_classifier(context_, node, feature_before(i)));
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

Operations make_operations(const Graph& graph, const CompileOptions& options, const OperationContext& context) {
  const std::int64_t micro_batch = options.micro_batch, group = options.group;
  if (!graph.has_images()) {
    const SequenceContext own{context, row_blocks(micro_batch, graph.sequence(), options.threads)};
    return SequenceJoiner(graph, own).join();
  }
  check_norm_groups(micro_batch, group);
  ImageContext own{context};
  own.norm = &norm_kernels(options.isa);
  own.image = &image_kernels(options.isa);
  own.measures = options.mode != PassMode::inference;
  own.group = std::min(group, micro_batch);
  own.span = std::max<std::int64_t>(1, group / micro_batch);
  return ImageJoiner(graph, own).join();
}

}  // namespace ringtrain::cpu
