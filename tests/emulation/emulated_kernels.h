// Runs the GPU's own kernels on the CPU, from the same source compiled as C++.
#pragma once

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// Runs a kernel and returns when it has ended. Throws Error for a kernel that does not exist in this type, for
// arguments of another kernel, and where a GPU would hang.
void run_emulated(const KernelLaunch& launch);

// From now on, kernels that this thread starts run their blocks and threads from the last to the first. Results that
// depend on this order, for example because a barrier is missing, then change.
void emulate_backwards(bool backwards);

}  // namespace ringtrain::cuda
