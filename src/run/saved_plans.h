// Builds cuDNN's plans for a GPU on a machine without one, so that the first start there finds them in a folder.
#pragma once

#include <string>

#include "backend/cuda/device/described.h"
#include "run/plan.h"

namespace ringtrain {

// Compiles the passes of training and evaluation for a described GPU, and saves the plans of every way to compute a
// layer below `saved.plan_cache`, which a run on such a GPU takes as machine.plan_cache. Plans that the folder has are
// kept. Throws Error when cuDNN is missing or the folder cannot be written.
void save_plans(const RunPlan& plan, const std::string& gpu, cuda::SavedPlans& saved);

}  // namespace ringtrain
