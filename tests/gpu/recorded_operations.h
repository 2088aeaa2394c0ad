// Reads the recorded plans (src/backend/cuda/device/recorded), which say which operations a kind of GPU supports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

struct RecordedOperation {
  DnnOperation operation;
  PlanAnswer answer;
  std::string cudnn;  // version of cuDNN that gave the answer
};

// Returns "h200" for "NVIDIA H200". For another name, returns the recorded device of the same compute capability, or ""
// if none is recorded.
std::string recorded_device(const DeviceFacts& facts);
// Returns the rows of the table of RINGTRAIN_ROOT (or of the working folder, if it is not set) in their order. Throws
// Error if there is no table.
std::vector<RecordedOperation> recorded_operations(const std::string& device);

}  // namespace ringtrain::cuda
