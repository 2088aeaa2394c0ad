// Makes plans for a real GPU (PlanMaker of device/plan_store.h).
//
// A plan is cuDNN's choice of kernels for one operation. dnn/plans.cpp describes the operation to cuDNN and builds its
// plans. This file connects that code with the PlanStore, which times plans and keeps the best.
#pragma once

#include <cudnn.h>

#include <memory>

#include "backend/cuda/device/plan_store.h"

namespace ringtrain::cuda {

// Makes a maker for the device's thread, with the device's handle. Several threads may call cuDNN at once when each has
// a handle of its own.
std::unique_ptr<PlanMaker> make_plan_maker(cudnnHandle_t handle);
// Makes a maker for another thread, which must be the caller. The maker has a handle of its own on this GPU. Throws
// Error when cuDNN gives no handle.
std::unique_ptr<PlanMaker> make_plan_maker_of_thread(int ordinal);

}  // namespace ringtrain::cuda
