// The maker of a real GPU's plans (device/plan_store.h).
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>

#include "backend/cuda/device/plan_store.h"

namespace ringtrain::cuda {

// Where the plans of this GPU and this cuDNN are kept below `cache`; "" for none.
std::filesystem::path plan_folder(const std::string& cache, const DeviceFacts& facts);

// cuDNN's functions may be called by several threads at once, each with a handle of its own: the device's thread gives
// the device's.
std::unique_ptr<PlanMaker> make_plan_maker(cudnnHandle_t handle);
// For another thread, in which it is called: with a handle on this GPU that is its own. Throws Error.
std::unique_ptr<PlanMaker> make_plan_maker_of_thread(int ordinal);

}  // namespace ringtrain::cuda
