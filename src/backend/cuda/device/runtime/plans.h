// The cuDNN plans of a real GPU: each operation is planned once, and kept for the next run and for other ranks.
#pragma once

#include <cudnn.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "backend/cuda/device/device.h"
#include "backend/cuda/dnn/packed_plans.h"
#include "backend/cuda/dnn/plans.h"

namespace ringtrain::cuda {

class RuntimePlans {
 public:
  // `cache`: a folder, "" for none; plans lie below it by GPU and version of cuDNN. RINGTRAIN_PLAN_CANDIDATES: how many
  // plans of an operation are timed (1, the default: cuDNN's first is taken).
  RuntimePlans(Device& device, cudnnHandle_t handle, const std::string& cache);

  const CudnnPlan* find(const DnnOperation& operation, std::string* why);
  PackedPlans packed() const;
  void take(PackedPlans plans);

 private:
  struct Known {
    std::unique_ptr<CudnnPlan> plan;
    std::string why;
  };
  Known make(const DnnOperation& operation);
  bool load(const DnnOperation& operation, const PackedPlan& packed, Known& known) const;
  std::unique_ptr<CudnnPlan> fastest(std::vector<std::unique_ptr<CudnnPlan>> plans);
  std::filesystem::path file_of(const DnnOperation& operation) const;
  void write(const DnnOperation& operation, const PackedPlan& packed) const;

  Device& device_;
  cudnnHandle_t handle_;
  DnnPlanner planner_;
  std::filesystem::path folder_;
  std::size_t most_candidates_ = 1;
  std::map<std::string, Known> known_;
  PackedPlans taken_;
  bool said_ = false;  // that a plan of those is refused here
};

}  // namespace ringtrain::cuda
