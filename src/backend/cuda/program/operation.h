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

// Throws Error when the device has no plan for it; `name` says who asks.
const DnnPlan& plan_of(Device& device, const std::string& name, const DnnOperation& operation);

// Adds a command that runs an operation, `launches` times. Without a plan the command can be counted, not issued.
void add_operation(Schedule& schedule, const DnnPlan* plan, std::string name, const DnnOperation& operation,
                   std::int64_t launches, const std::vector<Operand>& operands);

// What the operation's tensors hold together.
double tensor_bytes(const DnnOperation& operation);

}  // namespace ringtrain::cuda
