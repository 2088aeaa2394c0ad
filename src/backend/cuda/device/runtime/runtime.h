// What the files of this folder offer each other. device.cpp is the runtime device, and calls the others.
//
//   calls.cpp      the functions of cuDNN, and the check of what CUDA and cuDNN answer
//   discovery.cpp  which GPUs this process sees, and their properties; the entry of libringtrain-cuda.so
//   plans.cpp      plans for a real GPU: those of the PlanStore, and those of recurrent layers
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/device/plan_store.h"
#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

// ---- calls.cpp

// Cudnn holds the functions of cuDNN that the program calls directly: handles, errors, and recurrent layers. NVIDIA's
// front end calls cuDNN's graph API (dnn/plans.cpp).
//
// The program is not linked with cuDNN, so that it starts on machines without it. cudnn() opens the library
// (device/libraries.h) and looks up each function by name. To call another function of cuDNN, add it to this list.
#define RINGTRAIN_CUDNN_FUNCTIONS(X)                            \
  X(get_error_string, cudnnGetErrorString)                      \
  X(get_last_error_string, cudnnGetLastErrorString)             \
  X(create, cudnnCreate)                                        \
  X(destroy, cudnnDestroy)                                      \
  X(set_stream, cudnnSetStream)                                 \
  X(create_tensor_descriptor, cudnnCreateTensorDescriptor)      \
  X(destroy_tensor_descriptor, cudnnDestroyTensorDescriptor)    \
  X(set_tensor_descriptor, cudnnSetTensorNdDescriptor)          \
  X(get_tensor_descriptor, cudnnGetTensorNdDescriptor)          \
  X(create_rnn_descriptor, cudnnCreateRNNDescriptor)            \
  X(destroy_rnn_descriptor, cudnnDestroyRNNDescriptor)          \
  X(set_rnn_descriptor, cudnnSetRNNDescriptor_v8)               \
  X(create_rnn_data_descriptor, cudnnCreateRNNDataDescriptor)   \
  X(destroy_rnn_data_descriptor, cudnnDestroyRNNDataDescriptor) \
  X(set_rnn_data_descriptor, cudnnSetRNNDataDescriptor)         \
  X(build_rnn_dynamic, cudnnBuildRNNDynamic)                    \
  X(get_rnn_weight_space_size, cudnnGetRNNWeightSpaceSize)      \
  X(get_rnn_temp_space_sizes, cudnnGetRNNTempSpaceSizes)        \
  X(get_rnn_weight_params, cudnnGetRNNWeightParams)             \
  X(rnn_forward, cudnnRNNForward)                               \
  X(rnn_backward_data, cudnnRNNBackwardData_v8)                 \
  X(rnn_backward_weights, cudnnRNNBackwardWeights_v8)

struct Cudnn {
#define RINGTRAIN_CUDNN_MEMBER(member, function) decltype(&function) member;
  RINGTRAIN_CUDNN_FUNCTIONS(RINGTRAIN_CUDNN_MEMBER)
#undef RINGTRAIN_CUDNN_MEMBER
};

// Opens cuDNN at the first call. Throws Error when there is no cuDNN.
const Cudnn& cudnn();

// Turns errors of CUDA and cuDNN into Error with advice.
//
// The results of most calls to CUDA's runtime and to cuDNN in this folder go to check(). If the call failed, check()
// throws an Error that says what the program was doing, what the library answered, and where in the code it was. Some
// statuses get advice for the user, such as a driver that is too old. Destructors do not use check(), because they must
// not throw. The caller handles failures that it expects, such as an operation that cuDNN refuses.
[[noreturn]] void throw_cuda(cudaError_t status, const std::string& doing, std::source_location where);
[[noreturn]] void throw_out_of_memory(const std::string& what, std::int64_t bytes, std::source_location where);
[[noreturn]] void throw_cudnn(cudnnStatus_t status, const std::string& doing, std::source_location where);
std::string cudnn_reason(cudnnStatus_t status);  // cuDNN's text for the status and its last message

// `doing` says in the program's terms what it was doing, such as "copying to the GPU".
inline void check(cudaError_t status, const char* doing, std::source_location where = std::source_location::current()) {
  if (status != cudaSuccess) throw_cuda(status, doing, where);
}
inline void check(cudnnStatus_t status, const char* doing,
                  std::source_location where = std::source_location::current()) {
  if (status != CUDNN_STATUS_SUCCESS) throw_cudnn(status, doing, where);
}

// ---- discovery.cpp. An ordinal counts the GPUs that CUDA_VISIBLE_DEVICES leaves visible. `ringtrain plan --device`
// gets the same facts from a description of the GPU (device/described.h).

// The runtime device calls check_device() before it takes a GPU into use, and device_facts() right after.
// check_device() throws Error with advice when there is no driver, when no GPU has this ordinal, or when the program
// has no kernels for the GPU.
void check_device(int ordinal);
// Reads the facts of this device, which must be the current one. free_bytes is the memory free at the call.
// cudnn_version stays empty.
DeviceFacts device_facts(int ordinal);

// ---- plans.cpp. A plan is cuDNN's choice of kernels for one operation. dnn/plans.cpp describes the operation to cuDNN
// and builds its plans. A PlanMaker connects that code with the PlanStore, which times plans and keeps the best.

// Makes a maker for the device's thread, with the device's handle. Several threads may call cuDNN at once when each has
// a handle of its own.
std::unique_ptr<PlanMaker> make_plan_maker(cudnnHandle_t handle);
// Makes a maker for another thread, which must be the caller. The maker has a handle of its own on this GPU. Throws
// Error when cuDNN gives no handle.
std::unique_ptr<PlanMaker> make_plan_maker_of_thread(int ordinal);

// Runs recurrent layers through cuDNN's legacy API, which has descriptors, one weight space, and a reserve buffer that
// the forward pass writes and the backward pass reads.
//
// A CudnnRnnPlan is made once for each RnnOperation (dnn/operations.h): a stack of layers, a micro-batch and a
// precision. It says how much memory the passes need and where each weight lies in the weight space. The caller owns
// that memory and passes it to forward() and backward(), which only queue work on the handle's stream.
class CudnnRnnPlan : public RnnPlan {
 public:
  // Returns null when cuDNN refuses the operation; `why` is then cuDNN's reason. cuDNN refuses some operations only
  // when they run. Therefore make() runs a forward pass, and in training a backward pass, on scratch memory in `stream`
  // and waits for them. An error of that trial is a refusal, too. make() throws it only when it leaves the device
  // unusable. `handle` must work in `stream`, which is the device's compute stream.
  static std::unique_ptr<CudnnRnnPlan> make(Device& device, cudnnHandle_t handle, Stream stream,
                                            const RnnOperation& operation, std::string* why);
  ~CudnnRnnPlan() override;

  const RnnOperation& operation() const override { return operation_; }
  std::int64_t weight_bytes() const override { return static_cast<std::int64_t>(weight_bytes_); }
  std::int64_t workspace_bytes() const override;
  std::int64_t reserve_bytes() const override { return static_cast<std::int64_t>(reserve_bytes_); }
  const std::vector<RnnWeight>& weights() const override { return weights_; }

  cudnnStatus_t forward(cudnnHandle_t handle, const RnnForward& arguments) const;
  cudnnStatus_t backward(cudnnHandle_t handle, const RnnBackward& arguments) const;

 private:
  explicit CudnnRnnPlan(const RnnOperation& operation);
  std::string prepare(cudnnHandle_t handle);                           // "", or the reason for a refusal
  std::string find_weights(cudnnHandle_t handle, void* weight_space);  // "", or the reason
  std::string trial(Device& device, cudnnHandle_t handle, Stream stream);
  std::int64_t input_bytes() const;

  RnnOperation operation_;
  cudnnRNNDescriptor_t rnn_ = nullptr;
  cudnnRNNDataDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnTensorDescriptor_t state_ = nullptr;
  std::size_t weight_bytes_ = 0, workspace_bytes_ = 0, reserve_bytes_ = 0;
  std::vector<RnnWeight> weights_;
};

}  // namespace ringtrain::cuda
