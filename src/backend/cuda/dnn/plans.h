// cuDNN's execution plans of DnnOperations, through NVIDIA's front end (its headers are included in plans.cpp
// only). For a real device, by its cuDNN handle, or for one that is only described: then plans are built and refused
// for the same reasons, and cannot be executed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/dnn/operations.h"
#include "backend/cuda/dnn/packed_plans.h"

namespace ringtrain::cuda {

class CudnnPlan : public DnnPlan {
 public:
  ~CudnnPlan() override;
  const DnnOperation& operation() const override { return operation_; }
  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::string engine() const override { return engine_; }

  // In the handle's stream; may be captured. `tensors` as Device::run's, `workspace` 256-byte aligned.
  void execute(void* cudnn_handle, std::span<void* const> tensors, void* workspace) const;
  // For a cache, a broadcast or a run's folder. Holds for this cuDNN version and GPU. A plan that was loaded gives what
  // it was loaded from. Throws Error where cuDNN cannot write it down.
  PlanAnswer packed() const;

 private:
  friend class DnnPlanner;
  struct Graph;
  CudnnPlan(DnnOperation operation, std::shared_ptr<Graph> graph, std::int64_t index, std::int64_t workspace_bytes,
            std::string engine);
  DnnOperation operation_;
  std::shared_ptr<Graph> graph_;
  std::int64_t index_ = 0;  // of the plan among the graph's
  std::int64_t workspace_bytes_ = 0;
  std::string engine_;
  std::string loaded_from_;  // cuDNN's bytes; empty: it was built here
};

class DnnPlanner {
 public:
  // Loads cuDNN (libraries.h). A cudnnHandle_t of the device.
  static DnnPlanner for_device(void* cudnn_handle);
  // The JSON that cuDNN writes of a device; throws Error naming what it lacks.
  static DnnPlanner for_description(const std::string& json);
  DnnPlanner(DnnPlanner&&) noexcept;
  ~DnnPlanner();

  // The first plan that builds, of those that cuDNN's heuristics propose (mode A, then its fallback). Only
  // deterministic engines; without TF32 for Math::fp32. Null: none, and `why` says so in cuDNN's words.
  std::unique_ptr<CudnnPlan> plan(const DnnOperation& operation, std::string* why = nullptr) const;
  // The first `most` that build, to be timed; empty: none.
  std::vector<std::unique_ptr<CudnnPlan>> candidates(const DnnOperation& operation, std::size_t most,
                                                     std::string* why = nullptr) const;
  // What packed() gave for this operation; null where this cuDNN or device does not take it.
  std::unique_ptr<CudnnPlan> load(const DnnOperation& operation, const PlanAnswer& answer,
                                  std::string* why = nullptr) const;

 private:
  struct Target;
  explicit DnnPlanner(std::unique_ptr<Target> target);
  std::unique_ptr<Target> target_;
};

// Of everything that cuDNN is told of the operation: the same number, the same question. Needs no device.
std::uint64_t graph_hash(const DnnOperation& operation);
// A real GPU as cuDNN describes it: the JSON that for_description() takes. Throws Error.
std::string describe_gpu(int ordinal);
// Of the library that was loaded: "9.19.0".
std::string cudnn_version_text();

}  // namespace ringtrain::cuda
