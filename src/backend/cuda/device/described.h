// A GPU that is only described: its facts, cuDNN's plans for it and memory that is counted, on a machine that has none.
// What executes throws. cuDNN's recurrent calls plan on a real GPU only: their memory is an estimate here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

struct DeviceDescription {
  std::string name;  // "h200", or the file
  std::string json;  // one line, as cuDNN takes it
};
// The descriptions that the program brings (src/backend/cuda/devices), by name.
std::vector<std::string> described_device_names();
// One of those, or a JSON file. Throws Error that says which there are.
DeviceDescription find_description(const std::string& name_or_file);

// `plan_cache`: a file that keeps cuDNN's answers (PlanCache); "": none. Throws Error where cuDNN or the stand-in
// driver is missing.
std::unique_ptr<Device> make_described_device(const DeviceDescription& description, const std::string& plan_cache);

// What a rank's process holds on the GPU besides vectors and programs. Estimates, until a GPU has been asked.
inline constexpr std::int64_t context_estimate_bytes = std::int64_t{640} << 20;  // CUDA's context, cuDNN's kernels
inline constexpr std::int64_t nccl_estimate_bytes = std::int64_t{384} << 20;     // channels of a communicator

}  // namespace ringtrain::cuda
