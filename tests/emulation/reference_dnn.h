// Computes a DnnOperation by loops in fp32. The sums of an epilogue, and the sum of a weight gradient over samples, are
// in fp64. Each result is rounded once to its type.
#pragma once

#include <span>

#include "backend/cuda/dnn/operations.h"

namespace ringtrain::cuda {

// `tensors` holds one address per entry of operation.tensors(). `alpha` is the value that the host scalar held when the
// work was given. Throws Error when a tensor that the operation needs is missing from tensors().
void compute(const DnnOperation& operation, std::span<void* const> tensors, float alpha);

}  // namespace ringtrain::cuda
