// Which GPUs this process sees, and what they are.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

// Throws Error with advice where there is no driver, no GPU, not this one, or one that this program has no kernels for.
void check_device(int ordinal);
// "GPU-5fbe4b2a-...", or "MIG-..." of a slice: what nvidia-smi -L prints.
std::string device_uuid(int ordinal);
// Of the current device; free memory as it is now. cudnn_version is left empty.
DeviceFacts device_facts(int ordinal);

}  // namespace ringtrain::cuda
