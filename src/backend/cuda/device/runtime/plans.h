// Makes plans for a real GPU (PlanMaker of device/plan_store.h).
//
// A plan is cuDNN's choice of kernels for one operation. dnn/plans.cpp describes the operation to cuDNN and builds its
// plans. This file connects that code with the PlanStore, which times plans and keeps the best. It also says in which
// folder plans are kept from run to run.
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>

#include "backend/cuda/device/plan_store.h"

namespace ringtrain::cuda {

// Returns the folder below `cache` that keeps plans for this GPU and this cuDNN. When `cache` is "", the result is
// empty.
std::filesystem::path plan_folder(const std::string& cache, const DeviceFacts& facts);

// Makes a maker for the device's thread, with the device's handle. Several threads may call cuDNN at once when each has
// a handle of its own.
std::unique_ptr<PlanMaker> make_plan_maker(cudnnHandle_t handle);
// Makes a maker for another thread, which must be the caller. The maker has a handle of its own on this GPU. Throws
// Error when cuDNN gives no handle.
std::unique_ptr<PlanMaker> make_plan_maker_of_thread(int ordinal);

}  // namespace ringtrain::cuda
