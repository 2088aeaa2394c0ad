#include "backend/cuda/dnn/plans.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <set>

#include "backend/cuda/device/libraries.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace ringtrain::cuda {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;
using Pointwise = fe::PointwiseMode_t;

namespace {

// Turns off the front end's references from recorded graphs to the objects that they use. The device destroys its
// recorded graphs before its plans, so it needs none. Without the references a launch is faster, and no call goes
// through a second copy of CUDA's runtime. Older front ends have no such references.
template <class Graph>
void keep_no_references(Graph& graph) {
  if constexpr (requires { graph.get_cuda_graph_retention(); })
    graph.set_cuda_graph_retention(decltype(graph.get_cuda_graph_retention())::NONE);
}

}  // namespace

struct CudnnPlan::Graph {
  Graph() { keep_no_references(graph); }
  fe::graph::Graph graph;
};
struct DnnPlanner::Target {
  cudnnHandle_t handle = nullptr;
  std::shared_ptr<fe::DeviceProperties> description;
};

namespace {

constexpr std::int64_t most_attempts = 16;   // plans of one heuristic that may be refused before the search ends
constexpr std::size_t ordered_sums = 91100;  // cuDNN 9.11.0: the first that can sum in a fixed order in an epilogue

fe::DataType_t data_type(Type type) {
  return type == Type::fp32   ? fe::DataType_t::FLOAT
         : type == Type::bf16 ? fe::DataType_t::BFLOAT16
                              : fe::DataType_t::HALF;
}

// Builds cuDNN's graph of one operation. Tensor i of operation.tensors() gets the identifier i + 1.
class GraphBuilder {
 public:
  GraphBuilder(const DnnOperation& operation, fe::graph::Graph& graph)
      : o_(operation), g_(graph), tensors_(operation.tensors()) {
    g_.set_io_data_type(data_type(o_.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  void build() {
    switch (o_.kind) {
      case DnnKind::convolution:
        return convolution();
      case DnnKind::data_gradient:
        return data_gradient();
      case DnnKind::weight_gradient:
        return weight_gradient();
      case DnnKind::matmul:
        return matmul();
    }
  }

 private:
  std::size_t find(DnnRole role, bool output) const {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      if (tensors_[i].role == role && tensors_[i].output == output) return i;
    throw Error(cat("the operation '", o_.key(), "' has no tensor of role ", static_cast<int>(role)));
  }
  Tensor_attributes& describe(Tensor_attributes& tensor, std::size_t i) const {
    const DnnTensor& t = tensors_[i];
    return tensor.set_uid(static_cast<std::int64_t>(i) + 1)
        .set_dim(t.dimensions)
        .set_stride(t.strides)
        .set_data_type(data_type(t.type));
  }
  Tensor_attributes attributes(std::size_t i) const {
    Tensor_attributes tensor;
    return describe(tensor, i);
  }
  Tensor input(DnnRole role) {
    const std::size_t i = find(role, false);
    return g_.tensor(attributes(i).set_is_pass_by_value(role == DnnRole::alpha));
  }
  void result(const Tensor& tensor, DnnRole role) { describe(tensor->set_output(true), find(role, true)); }

  Tensor pointwise(Pointwise mode, const Tensor& a, const Tensor& b) {
    return g_.pointwise(a, b, fe::graph::Pointwise_attributes().set_mode(mode));
  }
  Tensor relu(const Tensor& a) {
    return g_.pointwise(a, fe::graph::Pointwise_attributes().set_mode(Pointwise::RELU_FWD));
  }
  Tensor add(const Tensor& a, const Tensor& b) { return pointwise(Pointwise::ADD, a, b); }
  Tensor multiply(const Tensor& a, const Tensor& b) { return pointwise(Pointwise::MUL, a, b); }
  Tensor scale_bias(const Tensor& x) {
    const Tensor scale = input(DnnRole::scale);  // added before the bias, as in tensors()
    return add(multiply(x, scale), input(DnnRole::bias));
  }
  // cuDNN sums with atomic additions, in varying order, unless a fixed order is asked for. cuDNN does not mark
  // such an engine as nondeterministic.
  void sum(const Tensor& of, DnnRole role) {
    const bool ordered = fe::detail::get_backend_version() >= ordered_sums;
    result(g_.reduction(
               of, fe::graph::Reduction_attributes().set_mode(fe::ReductionMode_t::ADD).set_is_deterministic(ordered)),
           role);
  }
  void two_sums(const Tensor& of, const Tensor& other) {
    sum(of, DnnRole::sum);
    sum(multiply(of, other), DnnRole::sum_other);
  }

  template <class Attributes>
  Attributes geometry() const {
    return Attributes().set_padding({o_.padding, o_.padding}).set_stride({o_.stride, o_.stride}).set_dilation({1, 1});
  }

  Tensor prologue(Tensor x) {
    if (o_.prologue == Prologue::none) return x;
    x = relu(scale_bias(x));
    x->set_data_type(data_type(o_.type));
    return x;
  }

  void convolution() {
    const Tensor x = prologue(input(DnnRole::x));
    const Tensor y = g_.conv_fprop(x, input(DnnRole::w), geometry<fe::graph::Conv_fprop_attributes>());
    result(y, DnnRole::y);
    if (o_.epilogue != Epilogue::sums) return;
    two_sums(y, y);
  }

  void data_gradient() {
    const Tensor dy = input(DnnRole::dy);
    Tensor dx = g_.conv_dgrad(dy, input(DnnRole::w), geometry<fe::graph::Conv_dgrad_attributes>());
    const DnnTensor& shape = tensors_[find(DnnRole::dx, true)];
    // cuDNN cannot infer the shape, because strides lose the remainder.
    dx->set_dim(shape.dimensions).set_stride(shape.strides);
    switch (o_.epilogue) {
      case Epilogue::none:
        break;
      case Epilogue::add:
        dx = add(dx, input(DnnRole::shortcut));
        break;
      case Epilogue::relu_sums:
      case Epilogue::relu_sums_output: {
        const Tensor x = input(DnnRole::norm_input), y = scale_bias(x);
        if (o_.epilogue == Epilogue::relu_sums_output) result(relu(y), DnnRole::output);
        dx = pointwise(Pointwise::RELU_BWD, dx, y);
        two_sums(dx, x);
        break;
      }
      case Epilogue::add_relu_sums:
        dx = add(dx, input(DnnRole::shortcut));
        dx = pointwise(Pointwise::RELU_BWD, dx, input(DnnRole::output));
        two_sums(dx, input(DnnRole::norm_input));
        break;
      case Epilogue::sums:
      case Epilogue::bias:
        throw Error(cat("'", o_.key(), "': a data gradient cannot have this epilogue"));
    }
    result(dx, DnnRole::dx);
  }

  void weight_gradient() {
    const Tensor x = prologue(input(DnnRole::x));
    Tensor dw = g_.conv_wgrad(input(DnnRole::dy), x, geometry<fe::graph::Conv_wgrad_attributes>());
    const DnnTensor& shape = tensors_[find(DnnRole::dw, true)];
    dw->set_dim(shape.dimensions).set_stride(shape.strides);
    if (o_.type != o_.result) dw = multiply(dw, input(DnnRole::alpha));
    result(dw, DnnRole::dw);
  }

  // Returns a matrix in the form of a convolution's input: `rows` images of one pixel with `columns` channels.
  Tensor pixels(DnnRole role, std::int64_t rows, std::int64_t columns) {
    return g_.tensor(
        attributes(find(role, false)).set_dim({rows, columns, 1, 1}).set_stride({columns, 1, columns, columns}));
  }

  // Only cuDNN's convolutions compute products in full fp32. Its matrix products round to TF32. A product has the
  // padding 0 and the stride 1.
  void matmul_as_convolution() {
    Tensor y;
    if (!o_.transposed_a && o_.transposed_b) {
      const Tensor a = pixels(DnnRole::a, o_.m, o_.k);
      y = g_.conv_fprop(a, pixels(DnnRole::b, o_.n, o_.k), geometry<fe::graph::Conv_fprop_attributes>());
    } else if (!o_.transposed_a) {
      const Tensor a = pixels(DnnRole::a, o_.m, o_.k);
      y = g_.conv_dgrad(a, pixels(DnnRole::b, o_.k, o_.n), geometry<fe::graph::Conv_dgrad_attributes>());
    } else if (!o_.transposed_b) {
      const Tensor a = pixels(DnnRole::a, o_.k, o_.m);
      y = g_.conv_wgrad(a, pixels(DnnRole::b, o_.k, o_.n), geometry<fe::graph::Conv_wgrad_attributes>());
    } else {
      throw Error(cat("'", o_.key(), "': no product of two transposed matrices in full fp32"));
    }
    y->set_uid(static_cast<std::int64_t>(find(DnnRole::y, true)) + 1)
        .set_output(true)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({o_.m, o_.n, 1, 1})
        .set_stride({o_.n, 1, o_.n, o_.n});
  }

  void matmul() {
    const bool full_fp32 = o_.type == Type::fp32 && o_.math == Math::fp32;
    if (full_fp32 && o_.epilogue == Epilogue::none) return matmul_as_convolution();
    const Tensor a = input(DnnRole::a);
    Tensor y = g_.matmul(a, input(DnnRole::b), fe::graph::Matmul_attributes());
    if (o_.epilogue == Epilogue::bias) y = add(y, input(DnnRole::bias));
    result(y, DnnRole::y);
  }

  const DnnOperation& o_;
  fe::graph::Graph& g_;
  std::vector<DnnTensor> tensors_;
};

// Puts the text on one line and limits its length.
std::string in_one_line(std::string text) {
  text = in_one_field(std::move(text));
  return text.size() > 400 ? text.substr(0, 400) + " ..." : text;
}

// Operations run in every step, so the text is made only when there is an error.
void check(const fe::error_t& error, const char* what) {
  if (error.is_bad()) throw Error(cat(what, ": ", in_one_line(error.err_msg)));
}
void check(const fe::error_t& error, const char* what, const DnnOperation& operation) {
  if (error.is_bad()) throw Error(cat(what, " '", operation.key(), "': ", in_one_line(error.err_msg)));
}

// Deselects engines whose results differ from run to run, because a resumed run must repeat the bits of the first. For
// fp32 it also deselects engines that multiply with fewer bits.
void filter(const DnnOperation& operation, fe::graph::Graph& graph) {
  graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
  if (operation.type == Type::fp32 && operation.math == Math::fp32)
    graph.deselect_numeric_notes({fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS});
}

// Returns whether the operation has sums whose bits differ from run to run.
bool has_unordered_sums(const DnnOperation& operation) {
  if (fe::detail::get_backend_version() >= ordered_sums) return false;
  return std::ranges::any_of(operation.tensors(), [](const DnnTensor& t) { return t.role == DnnRole::sum; });
}

bool was_filtered(const std::string& message) {
  return message.find("Deselecting execution plan") != std::string::npos;
}

// Checks that a plan needs exactly the tensors of the operation, because execute() passes one address for each of the
// identifiers 1, 2, ... Throws Error.
void check_tensors(const DnnOperation& operation, const nlohmann::json& plan) {
  std::set<std::int64_t> asked = plan.at("variant_pack_uids").get<std::set<std::int64_t>>(), given;
  for (std::size_t i = 1; i <= operation.tensors().size(); ++i) given.insert(static_cast<std::int64_t>(i));
  if (asked != given || !plan.at("pass_by_values").empty() || !plan.at("workspace_modifications").empty())
    throw Error(cat("a kept plan of '", operation.key(), "' asks for other tensors"));
}

// cuDNN reports a chain of refusals. The longest says most, so that one is kept.
void remember(std::string& reason, const std::string& next) {
  if (next.size() > reason.size()) reason = next;
}

}  // namespace

void CudnnPlan::execute(void* cudnn_handle, std::span<void* const> tensors, void* workspace) const {
  // The addresses are in the order of the identifiers.
  void* addresses[16];
  std::copy(tensors.begin(), tensors.end(), addresses);
  check(graph_->graph.execute_plan_at_index(static_cast<cudnnHandle_t>(cudnn_handle), addresses,
                                            static_cast<int>(tensors.size()), workspace, index_),
        "cuDNN could not run", operation_);
}

PlanAnswer CudnnPlan::packed() const {
  PlanAnswer answer{.found = true, .workspace_bytes = workspace_bytes_, .engine = engine_, .bytes = loaded_from_};
  if (!answer.bytes.empty()) return answer;  // a loaded graph has no list of plans to choose from
  const char* what = "cuDNN could not write down a plan of";
  // The plan is built already. This call selects it for serialize().
  check(graph_->graph.build_plan_at_index(index_), what, operation_);
  std::vector<std::uint8_t> bytes;
  try {
    check(graph_->graph.serialize(bytes, false), what, operation_);
  } catch (const fe::cudnnException& e) {
    throw Error(cat(what, " '", operation_.key(), "': ", in_one_line(e.what())));
  }
  answer.bytes.assign(bytes.begin(), bytes.end());
  return answer;
}

DnnPlanner DnnPlanner::for_device(void* cudnn_handle) {
  cudnn_library();
  auto target = std::make_shared<Target>();
  target->handle = static_cast<cudnnHandle_t>(cudnn_handle);
  return DnnPlanner(std::move(target));
}

DnnPlanner DnnPlanner::for_description(const std::string& json) {
  cudnn_library();
  auto target = std::make_shared<Target>();
  target->description = std::make_shared<fe::DeviceProperties>();
  const fe::error_t error = target->description->deserialize(std::vector<std::uint8_t>(json.begin(), json.end()));
  if (error.is_bad())
    throw Error(cat("cuDNN does not take the device's description: ", in_one_line(error.err_msg)),
                "Compare its keys with those of src/backend/cuda/device/descriptions/h200.json.");
  return DnnPlanner(std::move(target));
}

std::vector<std::unique_ptr<CudnnPlan>> DnnPlanner::candidates(const DnnOperation& operation, std::size_t most,
                                                               std::string* why) const {
  std::vector<std::unique_ptr<CudnnPlan>> found;
  std::string reason;
  if (has_unordered_sums(operation)) {
    if (why != nullptr)
      *why = cat("cuDNN ", cudnn_version_text(), " does not sum in a fixed order; cuDNN 9.11 or later does");
    return found;
  }
  for (const fe::HeurMode_t mode : {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}) {
    if (!found.empty()) break;
    auto graph = std::make_shared<CudnnPlan::Graph>();
    fe::graph::Graph& g = graph->graph;
    if (target_->description) g.set_device_properties(target_->description);
    GraphBuilder(operation, g).build();
    check(g.validate(), "cuDNN does not take the graph of", operation);
    const fe::error_t built = target_->handle ? g.build_operation_graph(target_->handle) : g.build_operation_graph();
    if (built.is_bad()) {
      remember(reason, built.err_msg);
      continue;
    }
    if (const fe::error_t made = g.create_execution_plans({mode}); made.is_bad()) {
      remember(reason, made.err_msg);
      continue;
    }
    filter(operation, g);
    std::int64_t attempts = 0;
    for (std::int64_t i = 0; i < g.get_execution_plan_count() && found.size() < most; ++i) {
      const fe::error_t error = g.build_plan_at_index(i);
      if (error.is_bad()) {
        if (was_filtered(error.err_msg)) continue;
        remember(reason, error.err_msg);
        if (++attempts == most_attempts) break;
        continue;
      }
      std::string engine;
      check(g.get_plan_name_at_index(i, engine), "cuDNN does not name an engine");
      std::int64_t workspace = 0;
      check(g.get_workspace_size_plan_at_index(i, workspace), "cuDNN does not report the plan's workspace size");
      found.push_back(std::unique_ptr<CudnnPlan>(new CudnnPlan(operation, graph, i, workspace, engine)));
    }
  }
  if (why != nullptr)
    *why = found.empty()
               ? in_one_line(reason.empty() ? "only engines that are not deterministic, or that round fp32 to TF32"
                                            : reason)
               : "";
  return found;
}

std::unique_ptr<CudnnPlan> DnnPlanner::load(const DnnOperation& operation, const PlanAnswer& answer,
                                            std::string* why) const {
  const std::vector<std::uint8_t> plan(answer.bytes.begin(), answer.bytes.end());
  auto graph = std::make_shared<CudnnPlan::Graph>();
  try {
    check_tensors(operation, nlohmann::json::from_ubjson(plan));
    fe::error_t error;
    if (target_->description) {
      graph->graph.set_device_properties(target_->description);
      error = graph->graph.deserialize(plan);
    } else {
      // The last argument turns off the front end's warm-up. A warm-up would record a graph in the program's stream.
      // Without tensors it would run nothing of the plan.
      error = graph->graph.deserialize(target_->handle, plan, false, false);
    }
    if (error.is_good()) {
      // A plan that was made without the GPU may need more workspace on it: on an H200, weight gradients of engine 65
      // need 8 MB where the plan says 131 bytes. The GPU's own answer counts.
      std::int64_t workspace = answer.workspace_bytes;
      check(graph->graph.get_workspace_size(workspace), "cuDNN does not report the workspace size of a kept plan");
      std::unique_ptr<CudnnPlan> loaded(new CudnnPlan(operation, graph, 0, workspace, answer.engine));
      loaded->loaded_from_ = answer.bytes;
      return loaded;
    }
    if (why != nullptr) *why = in_one_line(error.err_msg);
  } catch (const std::exception& e) {  // the JSON inside may be damaged
    if (why != nullptr) *why = in_one_line(e.what());
  }
  return nullptr;
}

std::uint64_t graph_hash(const DnnOperation& operation) {
  cudnn_library();
  fe::graph::Graph graph;
  GraphBuilder(operation, graph).build();
  check(graph.validate(), "cuDNN does not take the graph of", operation);
  nlohmann::json json;
  graph.serialize(json);
  return fnv1a(cat(json["nodes"].dump(), json["tensors"].dump()));
}

std::string runtime::describe_gpu(int ordinal) {
  cudnn_library();
  fe::DeviceProperties properties;
  properties.set_device_id(ordinal);
  check(properties.build(), "the description of a GPU");
  std::vector<std::uint8_t> json;
  check(properties.serialize(json), "the description of a GPU");
  std::string text(json.begin(), json.end());
  text.resize(std::min(text.size(), text.find('\0')));
  return text;
}

std::string cudnn_version_text() {
  cudnn_library();
  const std::size_t version = fe::detail::get_backend_version();
  return cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace ringtrain::cuda
