// Adds operations of cuDNN to a schedule, and says what they cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/program/schedule.h"

namespace ringtrain::cuda {

// Names a place in a storage.
struct Tensor {
  Storage storage = -1;
  std::int64_t offset = 0;  // bytes
};

// Holds the place of a tensor of an operation, and the distance in bytes from its place in one launch to its place in
// the next.
struct Operand {
  DnnRole role;
  Tensor tensor;
  std::int64_t step_bytes = 0;
  bool write = false;
};

// Returns the plan for the operation. Throws Error when the device has none; `name` says in the error which layer
// asked.
const DnnPlan& plan_of(Device& device, const std::string& name, const DnnOperation& operation);

// Adds a command that runs an operation `launches` times. When `plan` is null, the command can be counted but not
// issued.
void add_operation(Schedule& schedule, const DnnPlan* plan, std::string name, const DnnOperation& operation,
                   std::int64_t launches, const std::vector<Operand>& operands);

// Returns the size of all tensors of the operation in bytes.
double tensor_bytes(const DnnOperation& operation);

// Estimates the time that is lost when an operation runs once for each group of samples and not once for all. A fused
// operation takes the statistics of one group, so it runs once per group. The estimate decides between the two when
// nothing is timed. It compares `launches` launches of this operation with one launch that has `launches` times its
// samples. The loss is returned as the bytes of memory traffic that would take as long. There are two reasons for a
// loss. Each launch fills and drains the GPU. A group may have too few tiles of its matrix product for all
// multiprocessors. Returns 0 for one launch.
double bytes_lost_to_groups(const DeviceFacts& device, const DnnOperation& group, std::int64_t launches);

}  // namespace ringtrain::cuda
