// Adds an operation of cuDNN to a schedule as a command.
#pragma once

#include <string>
#include <vector>

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

}  // namespace ringtrain::cuda
