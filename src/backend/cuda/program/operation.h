// One of cuDNN's operations as a command of a schedule.
#pragma once

#include <string>
#include <vector>

#include "backend/cuda/program/schedule.h"

namespace ringtrain::cuda {

// A place in a storage.
struct Tensor {
  Storage storage = -1;
  std::int64_t offset = 0;  // bytes
};

// A tensor of an operation: where it lies, and how far it moves from one launch to the next.
struct Operand {
  DnnRole role;
  Tensor tensor;
  std::int64_t step_bytes = 0;
  bool write = false;
};

// Adds a command that runs an operation, `launches` times. Throws Error when the device has no plan for it.
void add_operation(Schedule& schedule, Device& device, std::string name, const DnnOperation& operation,
                   std::int64_t launches, const std::vector<Operand>& operands);

}  // namespace ringtrain::cuda
