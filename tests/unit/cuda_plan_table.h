// What the layers of the models ask cuDNN for, and the recorded answers for described GPUs (results/cuda_plans_*.csv,
// written by build/bench/cuda_plans).
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "backend/cuda/dnn.h"
#include "backend/cuda/plan_process.h"
#include "base/error.h"
#include "tests/unit/pictures.h"

namespace ringtrain::cuda {

struct LayerOperation {
  DnnOperation operation;
  bool plain = true;  // nothing fused: what everything falls back to
};

// The distinct operations of models in each precision, in the order of first use.
class LayerOperations {
 public:
  void add(const Graph& graph, std::int64_t samples) {
    for (const Type type : {Type::fp32, Type::bf16, Type::fp16})
      for (const Math math : {Math::fp32, Math::tf32}) {
        if (type != Type::fp32 && math == Math::tf32) continue;
        type_ = type;
        math_ = type == Type::fp32 ? math : Math::half;
        for (const Node& node : graph.nodes()) {
          const FeatureShape in =
              node.inputs.empty() ? FeatureShape{} : graph.nodes()[static_cast<std::size_t>(node.inputs[0])].output;
          if (const auto* c = std::get_if<Convolution>(&node.operation))
            convolution(*c, in, samples, node.inputs[0] == 0, graph.has_batch_norm());
          if (const auto* d = std::get_if<Dense>(&node.operation)) dense(*d, samples * graph.sequence());
        }
      }
  }
  const std::vector<LayerOperation>& all() const { return all_; }

 private:
  static std::int64_t padded(std::int64_t channels) { return (channels + 7) / 8 * 8; }

  void keep(const DnnOperation& operation, bool plain) {
    if (index_.emplace(operation.key(), all_.size()).second) all_.push_back({operation, plain});
  }

  void convolution(const Convolution& layer, const FeatureShape& in, std::int64_t samples, bool pixels, bool norms) {
    DnnOperation o;
    o.type = type_;
    o.math = math_;
    o.n = samples;
    o.c = pixels ? 4 : padded(layer.input);
    o.h = in.height;
    o.w = in.width;
    o.k = padded(layer.output);
    o.r = layer.kernel;
    o.stride = layer.stride;
    o.padding = layer.padding;
    keep(o, true);
    DnnOperation wgrad = o;
    wgrad.kind = DnnKind::weight_gradient;
    keep(wgrad, true);
    wgrad.accumulate = true;
    keep(wgrad, false);
    DnnOperation dgrad = o;
    dgrad.kind = DnnKind::data_gradient;
    if (!pixels) keep(dgrad, true);
    if (!norms || type_ == Type::fp32) return;

    DnnOperation forward = o;
    forward.epilogue = Epilogue::sums;
    keep(forward, false);
    if (type_ == Type::fp16) {
      forward.specialised = true;
      keep(forward, false);
      forward.specialised = false;
    }
    if (pixels) return;
    for (const Prologue p : {Prologue::scale_bias_relu, Prologue::scale_bias_add_relu}) {
      forward.prologue = p;
      keep(forward, false);
    }
    for (const Epilogue e : {Epilogue::add, Epilogue::relu_sums, Epilogue::relu_sums_output, Epilogue::add_relu_sums}) {
      dgrad.epilogue = e;
      keep(dgrad, false);
    }
  }

  // Rows x input to rows x output, its two gradients; the loss and the weights want fp32.
  void dense(const Dense& layer, std::int64_t rows) {
    const std::int64_t output = padded(layer.output);
    DnnOperation o;
    o.kind = DnnKind::matmul;
    o.type = type_;
    o.math = math_;
    o.result = Type::fp32;
    o.m = rows, o.n = output, o.k = layer.input, o.transposed_b = true;
    keep(o, true);
    o.epilogue = Epilogue::bias;
    keep(o, false);
    o.epilogue = Epilogue::none, o.transposed_b = false;
    o.n = layer.input, o.k = output, o.result = type_;
    keep(o, true);
    o.m = output, o.k = rows, o.transposed_a = true, o.result = Type::fp32;
    keep(o, true);
    o.accumulate = true;
    keep(o, false);
  }

  Type type_ = Type::fp32;
  Math math_ = Math::fp32;
  std::vector<LayerOperation> all_;
  std::map<std::string, std::size_t> index_;
};

// Of every model at the size of its paper, with 32 samples in a launch, as batch norm of Goyal et al. wants them.
inline LayerOperations model_operations() {
  LayerOperations operations;
  for (const std::int64_t depth : {50, 18, 34}) operations.add(small_resnet(depth, 64, "imagenet", 224, 0, 1000), 32);
  operations.add(alexnet({}, picture_shape(224, 1000), {}), 32);
  operations.add(cnn({}, picture_shape(32, 10), {}), 32);
  SampleShape text;
  text.sequence = 64;
  text.vocabulary = 96;
  operations.add(char_lstm({}, text), 64);
  return operations;
}

struct PlanRow {
  std::string key;
  std::uint64_t graph = 0;
  PlanAnswer answer;
};

// Comment lines, the names of the columns, rows.
struct PlanTable {
  std::string cudnn;
  std::vector<PlanRow> rows;
  std::map<std::string, std::size_t> index;

  const PlanRow* find(const std::string& key) const {
    const auto found = index.find(key);
    return found == index.end() ? nullptr : &rows[found->second];
  }
};

inline PlanTable read_plan_table(const std::string& path) {
  PlanTable table;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("# cuDNN ", 0) == 0) table.cudnn = line.substr(8);
    if (line.empty() || line[0] == '#' || line.rfind("operation,", 0) == 0) continue;
    std::istringstream fields(line);
    std::string graph, said, workspace, text;
    PlanRow row;
    if (!std::getline(fields, row.key, ',') || !std::getline(fields, graph, ',') || !std::getline(fields, said, ',') ||
        !std::getline(fields, workspace, ','))
      throw Error(cat(path, ": '", line, "' is no row"));
    std::getline(fields, text);
    row.graph = std::strtoull(graph.c_str(), nullptr, 16);
    row.answer = parse_answer(cat(said, "\t", workspace, "\t", text));
    table.index[row.key] = table.rows.size();
    table.rows.push_back(row);
  }
  return table;
}

inline std::string plan_table_row(const PlanRow& row) {
  std::ostringstream out;
  std::string text = row.answer.found ? row.answer.engine : row.answer.why;
  for (char& c : text)
    if (c == ',') c = ';';
  out << row.key << ',' << std::hex << row.graph << std::dec << ',' << (row.answer.found ? "found" : "refused") << ','
      << row.answer.workspace_bytes << ',' << text;
  return out.str();
}

}  // namespace ringtrain::cuda
