#include "backend/cuda/device/runtime/plans.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/device/runtime/cudnn.h"
#include "backend/cuda/device/runtime/errors.h"
#include "backend/cuda/dnn/plans.h"
#include "base/error.h"

namespace ringtrain::cuda {
namespace {

class CudnnPlanMaker : public PlanMaker {
 public:
  explicit CudnnPlanMaker(cudnnHandle_t handle) : planner_(DnnPlanner::for_device(handle)) {}
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
  DnnPlanner planner_;
};

struct OwnedHandle {
  explicit OwnedHandle(int ordinal) {
    check(cudaSetDevice(ordinal), "taking the GPU into use");
    check(cudnn().create(&value), "starting cuDNN");
  }
  ~OwnedHandle() { cudnn().destroy(value); }
  OwnedHandle(const OwnedHandle&) = delete;
  OwnedHandle& operator=(const OwnedHandle&) = delete;
  cudnnHandle_t value = nullptr;
};

class MakerOfThread : private OwnedHandle, public CudnnPlanMaker {
 public:
  explicit MakerOfThread(int ordinal) : OwnedHandle(ordinal), CudnnPlanMaker(OwnedHandle::value) {}
};

}  // namespace

std::unique_ptr<PlanMaker> make_plan_maker(cudnnHandle_t handle) {
  return std::make_unique<CudnnPlanMaker>(handle);
}

std::unique_ptr<PlanMaker> make_plan_maker_of_thread(int ordinal) {
  return std::make_unique<MakerOfThread>(ordinal);
}

}  // namespace ringtrain::cuda
