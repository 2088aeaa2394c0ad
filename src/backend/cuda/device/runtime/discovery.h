// Finds out which GPUs this process sees and reads their properties.
//
// The runtime device (device.cpp) calls check_device() before it takes a GPU into use, and device_facts() right after.
// An ordinal counts the GPUs that CUDA_VISIBLE_DEVICES leaves visible. `ringtrain plan --device` gets the same facts
// from a description of the GPU (device/described.h).
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

// Throws Error with advice when there is no driver, when no GPU has this ordinal, or when the program has no kernels
// for the GPU.
void check_device(int ordinal);
// Returns "GPU-5fbe4b2a-...", or "MIG-..." for a MIG slice, as nvidia-smi -L prints it.
std::string device_uuid(int ordinal);
// Reads the facts of this device, which must be the current one. free_bytes is the memory free at the call.
// cudnn_version stays empty.
DeviceFacts device_facts(int ordinal);

}  // namespace ringtrain::cuda
