#include "run/saved_plans.h"

#include "backend/cuda/backend.h"
#include "run/split.h"

namespace ringtrain {

void save_plans(const RunPlan& plan, const std::string& gpu, cuda::SavedPlans& saved) {
  const auto device = cuda::make_saving_device(cuda::find_description(gpu), true, saved);
  cuda::FusionTable fusions(0);
  const auto backend = cuda::make_backend(*device, {.fusions = &fusions});
  for (int stage = 0; stage < plan.stages(); ++stage) {
    const ModelPart part = part_of(plan, stage);
    compile_part(plan, part, *backend, PassMode::training, plan.batch.micro_batch);
    if (plan.has_validation)
      compile_part(plan, part, *backend, PassMode::inference, plan.validation_loader.micro_batch);
  }
}

}  // namespace ringtrain
