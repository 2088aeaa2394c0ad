// Makes plans for a real GPU (PlanMaker of device/plan_store.h).
//
// A plan is cuDNN's choice of kernels for one operation. dnn/plans.cpp describes the operation to cuDNN and builds its
// plans. This file connects that code with the PlanStore, which times plans and keeps the best.
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/device/plan_store.h"
#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

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
