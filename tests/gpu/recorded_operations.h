// What a GPU of this kind takes by the recorded tables of plans: results/cuda_plans_DEVICE.csv.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/dnn/packed_plans.h"

namespace ringtrain::cuda {

struct RecordedOperation {
  DnnOperation operation;
  PlanAnswer answer;
  std::string cudnn;  // that answered
};

// "h200" of "NVIDIA H200"; else the one of the same compute capability; "": none is recorded.
std::string recorded_device(const DeviceFacts& facts);
// Of RINGTRAIN_ROOT's table ("": the working folder's), in its order. Throws Error where there is none.
std::vector<RecordedOperation> recorded_operations(const std::string& device);

}  // namespace ringtrain::cuda
