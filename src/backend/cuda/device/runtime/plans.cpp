// Plans for a real GPU (runtime.h).
#include "backend/cuda/dnn/plans.h"

#include <cuda_runtime_api.h>

#include <array>
#include <limits>

#include "backend/cuda/device/runtime/runtime.h"
#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain::cuda {
namespace {

using OwnedHandle = std::unique_ptr<cudnnContext, decltype(&cudnnDestroy)>;

class CudnnPlanMaker : public PlanMaker {
 public:
  // `own` is null, or the handle, which ends with this maker.
  CudnnPlanMaker(cudnnHandle_t handle, OwnedHandle own)
      : own_(std::move(own)), planner_(DnnPlanner::for_device(handle)) {}
  std::vector<std::unique_ptr<DnnPlan>> build(const DnnOperation& operation, std::size_t most,
                                              std::string* why) override {
    std::vector<std::unique_ptr<DnnPlan>> plans;
    for (auto& plan : planner_.candidates(operation, most, why)) plans.push_back(std::move(plan));
    return plans;
  }
  std::unique_ptr<DnnPlan> load(const DnnOperation& operation, const PlanAnswer& answer) override {
    return planner_.load(operation, answer);
  }
  PlanAnswer packed(const DnnPlan& plan) override { return static_cast<const CudnnPlan&>(plan).packed(); }
  std::uint64_t graph_hash(const DnnOperation& operation) override { return cuda::graph_hash(operation); }

 private:
  OwnedHandle own_;
  DnnPlanner planner_;
};

}  // namespace

std::unique_ptr<PlanMaker> make_plan_maker(cudnnHandle_t handle) {
  return std::make_unique<CudnnPlanMaker>(handle, OwnedHandle(nullptr, nullptr));
}

std::unique_ptr<PlanMaker> make_plan_maker_of_thread(int ordinal) {
  check(cudaSetDevice(ordinal), "taking the GPU into use");
  cudnnHandle_t handle = nullptr;
  check(cudnn().create(&handle), "starting cuDNN");
  return std::make_unique<CudnnPlanMaker>(handle, OwnedHandle(handle, cudnn().destroy));
}

namespace {

constexpr std::int64_t alignment = 256;  // bytes
constexpr int gates = 4;  // cuDNN's linear layers 0..3 are W_i, W_f, W_g, W_o for x; 4..7 are the same for h

cudnnDataType_t data_type(Type type) {
  return type == Type::fp32 ? CUDNN_DATA_FLOAT : type == Type::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

// Products are summed in fp32 for every type.
cudnnMathType_t math_type(Math math) {
  return math == Math::fp32 ? CUDNN_FMA_MATH : math == Math::tf32 ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH;
}

cudnnRNNAlgo_t algorithm_of(RnnAlgorithm algorithm) {
  switch (algorithm) {
    case RnnAlgorithm::standard:
      return CUDNN_RNN_ALGO_STANDARD;
    case RnnAlgorithm::persist_static:
      return CUDNN_RNN_ALGO_PERSIST_STATIC;
    case RnnAlgorithm::persist_dynamic:
      return CUDNN_RNN_ALGO_PERSIST_DYNAMIC;
    case RnnAlgorithm::persist_small_h:
      return CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H;
  }
  throw Error("unknown algorithm of a recurrent layer");
}

int narrow(std::int64_t value, const char* what) {
  if (value < 0 || value > std::numeric_limits<int>::max())
    throw Error(
        cat("a recurrent layer's ", what, " is ", value, "; cuDNN takes at most ", std::numeric_limits<int>::max()));
  return static_cast<int>(value);
}

// Returns "" on success, else cuDNN's reason.
std::string refusal(cudnnStatus_t status, const char* call) {
  return status == CUDNN_STATUS_SUCCESS ? "" : cat(call, ": ", cudnn_reason(status));
}

// Waits for the device's work in the destructor. An object that is declared after memory keeps that memory alive until
// the work has ended, on every path.
struct WaitAtEnd {
  Device& device;
  ~WaitAtEnd() { device.why_unusable(); }
};

struct OwnedTensorDescriptor {
  OwnedTensorDescriptor() { check(cudnn().create_tensor_descriptor(&value), "describing a tensor"); }
  ~OwnedTensorDescriptor() { cudnn().destroy_tensor_descriptor(value); }
  OwnedTensorDescriptor(const OwnedTensorDescriptor&) = delete;
  OwnedTensorDescriptor& operator=(const OwnedTensorDescriptor&) = delete;
  // Returns rows and columns of a row-major tensor [1, rows, columns]. Returns zeros when the tensor has another shape.
  std::array<std::int64_t, 2> matrix() const {
    cudnnDataType_t type;
    int count = 0;
    std::array<int, 3> dimensions{}, strides{};
    check(cudnn().get_tensor_descriptor(value, 3, &type, &count, dimensions.data(), strides.data()),
          "reading where a weight lies");
    if (count != 3 || dimensions[0] != 1 || (dimensions[2] > 1 && strides[2] != 1) ||
        (dimensions[1] > 1 && strides[1] != dimensions[2]))
      return {0, 0};
    return {dimensions[1], dimensions[2]};
  }
  cudnnTensorDescriptor_t value = nullptr;
};

}  // namespace

CudnnRnnPlan::CudnnRnnPlan(const RnnOperation& operation) : operation_(operation) {}

CudnnRnnPlan::~CudnnRnnPlan() {
  if (state_ != nullptr) cudnn().destroy_tensor_descriptor(state_);
  if (y_ != nullptr) cudnn().destroy_rnn_data_descriptor(y_);
  if (x_ != nullptr) cudnn().destroy_rnn_data_descriptor(x_);
  if (rnn_ != nullptr) cudnn().destroy_rnn_descriptor(rnn_);
}

std::int64_t CudnnRnnPlan::input_bytes() const {
  return operation_.length * operation_.batch * operation_.input * bytes_of(operation_.type);
}

// Returns the size of cuDNN's own workspace and of memory for the gradient of x that follows it. cuDNN writes that
// gradient whether or not it is wanted.
std::int64_t CudnnRnnPlan::workspace_bytes() const {
  const std::int64_t own = round_up(static_cast<std::int64_t>(workspace_bytes_), alignment);
  return operation_.training ? own + round_up(input_bytes(), alignment) : own;
}

std::string CudnnRnnPlan::prepare(cudnnHandle_t handle) {
  const Cudnn& c = cudnn();
  const RnnOperation& o = operation_;
  const int layers = narrow(o.layers, "number of layers"), input = narrow(o.input, "input"),
            hidden = narrow(o.hidden, "size"), length = narrow(o.length, "sequence length"),
            batch = narrow(o.batch, "batch");
  const cudnnDataType_t type = data_type(o.type);
  check(c.create_rnn_descriptor(&rnn_), "describing a recurrent layer");
  check(c.create_rnn_data_descriptor(&x_), "describing a sequence");
  check(c.create_rnn_data_descriptor(&y_), "describing a sequence");
  check(c.create_tensor_descriptor(&state_), "describing a hidden state");
  cudnnStatus_t status = c.set_rnn_descriptor(
      rnn_, algorithm_of(o.algorithm), CUDNN_LSTM, CUDNN_RNN_DOUBLE_BIAS, CUDNN_UNIDIRECTIONAL, CUDNN_LINEAR_INPUT,
      type, CUDNN_DATA_FLOAT, math_type(o.math), input, hidden, hidden, layers, nullptr, CUDNN_RNN_PADDED_IO_DISABLED);
  if (status != CUDNN_STATUS_SUCCESS) return refusal(status, "cudnnSetRNNDescriptor_v8");
  // All sequences have one length, so the packed and the padded layout have the same bytes. cuDNN's path for the packed
  // layout is older and faster.
  const std::vector<int> lengths(static_cast<std::size_t>(batch), length);
  const auto layout = CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED;
  status = c.set_rnn_data_descriptor(x_, type, layout, length, batch, input, lengths.data(), nullptr);
  if (status != CUDNN_STATUS_SUCCESS) return refusal(status, "cudnnSetRNNDataDescriptor of x");
  status = c.set_rnn_data_descriptor(y_, type, layout, length, batch, hidden, lengths.data(), nullptr);
  if (status != CUDNN_STATUS_SUCCESS) return refusal(status, "cudnnSetRNNDataDescriptor of y");
  const std::array<int, 3> shape = {layers, batch, hidden}, strides = {batch * hidden, hidden, 1};
  check(c.set_tensor_descriptor(state_, type, 3, shape.data(), strides.data()), "describing a hidden state");
  if (o.algorithm == RnnAlgorithm::persist_dynamic) {
    status = c.build_rnn_dynamic(handle, rnn_, batch);
    if (status != CUDNN_STATUS_SUCCESS) return refusal(status, "cudnnBuildRNNDynamic");
  }
  status = c.get_rnn_weight_space_size(handle, rnn_, &weight_bytes_);
  if (status != CUDNN_STATUS_SUCCESS) return refusal(status, "cudnnGetRNNWeightSpaceSize");
  const cudnnForwardMode_t mode = o.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE;
  status = c.get_rnn_temp_space_sizes(handle, rnn_, mode, x_, &workspace_bytes_, &reserve_bytes_);
  if (!o.training) reserve_bytes_ = 0;
  return refusal(status, "cudnnGetRNNTempSpaceSizes");
}

std::string CudnnRnnPlan::find_weights(cudnnHandle_t handle, void* weight_space) {
  const char* base = static_cast<const char*>(weight_space);
  const std::int64_t size = bytes_of(operation_.type);
  const OwnedTensorDescriptor matrix, bias;
  for (std::int64_t layer = 0; layer < operation_.layers; ++layer) {
    for (int linear = 0; linear < 2 * gates; ++linear) {
      void *matrix_at = nullptr, *bias_at = nullptr;
      const cudnnStatus_t status =
          cudnn().get_rnn_weight_params(handle, rnn_, static_cast<int>(layer), weight_bytes_, weight_space, linear,
                                        matrix.value, &matrix_at, bias.value, &bias_at);
      if (status != CUDNN_STATUS_SUCCESS) return refusal(status, "cudnnGetRNNWeightParams");
      const bool recurrent = linear >= gates;
      const std::int64_t features = recurrent || layer > 0 ? operation_.hidden : operation_.input;
      const auto found = matrix.matrix(), found_bias = bias.matrix();
      if (found != std::array<std::int64_t, 2>{operation_.hidden, features} ||
          found_bias[0] * found_bias[1] != operation_.hidden)
        return cat("layer ", layer, ", linear layer ", linear, ": cuDNN's weights are ", found[0], " x ", found[1],
                   " with ", found_bias[0] * found_bias[1], " biases; expected row-major ", operation_.hidden, " x ",
                   features, " and ", operation_.hidden);
      const std::int64_t at = static_cast<const char*>(matrix_at) - base;
      const std::int64_t other = static_cast<const char*>(bias_at) - base;
      weights_.push_back({layer, recurrent, false, linear % gates, at / size, operation_.hidden * features});
      weights_.push_back({layer, recurrent, true, linear % gates, other / size, operation_.hidden});
    }
  }
  return "";
}

std::string CudnnRnnPlan::trial(Device& device, cudnnHandle_t handle, Stream stream) {
  const std::int64_t output_bytes =
      operation_.length * operation_.batch * operation_.hidden * bytes_of(operation_.type);
  const std::string what = cat("a trial of ", operation_.key());
  const DeviceMemory weights(device, weight_bytes(), what), workspace(device, workspace_bytes(), what),
      reserve(device, reserve_bytes(), what), x(device, input_bytes(), what), y(device, output_bytes, what),
      gradient(device, operation_.training ? weight_bytes() : 0, what);
  const WaitAtEnd wait{device};
  std::string why = find_weights(handle, weights.data());
  if (!why.empty()) return why;
  RnnForward f;
  f.x = x.data(), f.y = y.data(), f.weights = weights.data();
  f.workspace = workspace.data(), f.reserve = reserve.data();
  why = refusal(forward(handle, f), "cudnnRNNForward");
  if (why.empty() && operation_.training) {
    RnnBackward b;
    b.x = x.data(), b.y = y.data(), b.dy = y.data(), b.weights = weights.data(), b.dweights = gradient.data();
    b.workspace = workspace.data(), b.reserve = reserve.data();
    why = refusal(backward(handle, b), "cudnnRNNBackwardData_v8 or cudnnRNNBackwardWeights_v8");
  }
  const Event end = device.make_event();
  device.record(end, stream);
  device.synchronize(end, {});
  return why;
}

std::unique_ptr<CudnnRnnPlan> CudnnRnnPlan::make(Device& device, cudnnHandle_t handle, Stream stream,
                                                 const RnnOperation& operation, std::string* why) {
  std::unique_ptr<CudnnRnnPlan> plan(new CudnnRnnPlan(operation));
  std::string refused = plan->prepare(handle);
  if (refused.empty()) try {
      refused = plan->trial(device, handle, stream);
    } catch (const Error& e) {  // some errors appear only when the host waits for the work
      if (!device.why_unusable().empty()) throw;
      refused = cat("a trial does not run: ", e.what());
    }
  if (refused.empty()) return plan;
  if (why != nullptr) *why = refused;
  return nullptr;
}

cudnnStatus_t CudnnRnnPlan::forward(cudnnHandle_t handle, const RnnForward& a) const {
  return cudnn().rnn_forward(handle, rnn_, operation_.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE,
                             nullptr, x_, a.x, y_, a.y, state_, a.h0, a.hn, state_, a.c0, a.cn, weight_bytes_,
                             a.weights, workspace_bytes_, a.workspace, reserve_bytes_,
                             reserve_bytes_ > 0 ? a.reserve : nullptr);
}

cudnnStatus_t CudnnRnnPlan::backward(cudnnHandle_t handle, const RnnBackward& a) const {
  void* unwanted = static_cast<char*>(a.workspace) + round_up(static_cast<std::int64_t>(workspace_bytes_), alignment);
  const cudnnStatus_t status =
      cudnn().rnn_backward_data(handle, rnn_, nullptr, y_, a.y, a.dy, x_, a.dx == nullptr ? unwanted : a.dx, state_,
                                a.h0, nullptr, nullptr, state_, a.c0, nullptr, nullptr, weight_bytes_, a.weights,
                                workspace_bytes_, a.workspace, reserve_bytes_, a.reserve);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  return cudnn().rnn_backward_weights(handle, rnn_, CUDNN_WGRAD_MODE_ADD, nullptr, x_, a.x, state_, a.h0, y_, a.y,
                                      weight_bytes_, a.dweights, workspace_bytes_, a.workspace, reserve_bytes_,
                                      a.reserve);
}

}  // namespace ringtrain::cuda
