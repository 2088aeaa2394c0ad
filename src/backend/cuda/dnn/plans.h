// Makes cuDNN's execution plans for DnnOperations with NVIDIA's front end. Only plans.cpp includes the front end's
// headers. DnnPlanner plans for a real device with its cuDNN handle, or for a device that is only described. For a
// described device plans are built or refused for the same reasons as on the real one, but cannot be executed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

class CudnnPlan : public DnnPlan {
 public:
  const DnnOperation& operation() const override { return operation_; }
  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::string engine() const override { return engine_; }

  // Runs the plan in the handle's stream; the call may be captured. `tensors` are as in Device::run. `workspace` is
  // aligned to 256 bytes.
  void execute(void* cudnn_handle, std::span<void* const> tensors, void* workspace) const;
  // Returns the plan in the form that a cache, a broadcast and a run's folder keep. It is valid for this cuDNN version
  // and this type of GPU. A loaded plan returns the bytes that it was loaded from, with the workspace that this device
  // asks for. Throws Error when cuDNN cannot serialise the plan.
  PlanAnswer packed() const;

 private:
  friend class DnnPlanner;
  struct Graph;
  CudnnPlan(DnnOperation operation, std::shared_ptr<Graph> graph, std::int64_t index, std::int64_t workspace_bytes,
            std::string engine)
      : operation_(std::move(operation)),
        graph_(std::move(graph)),
        index_(index),
        workspace_bytes_(workspace_bytes),
        engine_(std::move(engine)) {}
  DnnOperation operation_;
  std::shared_ptr<Graph> graph_;
  std::int64_t index_;  // index of the plan among the graph's plans
  std::int64_t workspace_bytes_;
  std::string engine_;
  std::string loaded_from_;  // cuDNN's bytes; empty when the plan was built here
};

class DnnPlanner {
 public:
  // Plans for a device through its cudnnHandle_t. Loads cuDNN (device/libraries.h).
  static DnnPlanner for_device(void* cudnn_handle);
  // Plans for a described device. `json` is the JSON with which cuDNN describes a device. Throws Error that names the
  // missing entries.
  static DnnPlanner for_description(const std::string& json);

  // Returns the first `most` plans that build, so that the caller can time them. cuDNN's heuristics propose the plans:
  // mode A first, then the fallback mode. Engines whose results differ from run to run are left out; for Math::fp32
  // engines with TF32 are left out too. The result is empty when no plan builds; `why` is then cuDNN's reason.
  std::vector<std::unique_ptr<CudnnPlan>> candidates(const DnnOperation& operation, std::size_t most,
                                                     std::string* why = nullptr) const;
  // Loads a plan from the answer that packed() gave for this operation. Returns null when this cuDNN or this device
  // does not accept it.
  std::unique_ptr<CudnnPlan> load(const DnnOperation& operation, const PlanAnswer& answer,
                                  std::string* why = nullptr) const;

 private:
  struct Target;
  explicit DnnPlanner(std::shared_ptr<const Target> target) : target_(std::move(target)) {}
  std::shared_ptr<const Target> target_;
};

// Returns a hash of everything that cuDNN is told about the operation. Equal hashes mean equal questions. The call
// needs no device.
std::uint64_t graph_hash(const DnnOperation& operation);
// Returns the version of the loaded cuDNN, such as "9.19.0".
std::string cudnn_version_text();

}  // namespace ringtrain::cuda
