// The GPU's own kernels on the CPU: the same source, compiled as C++.
#pragma once

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// Returns when the kernel has ended. Throws Error for a kernel that does not exist in this type, for arguments of
// another kernel, and where a GPU would hang.
void run_emulated(const KernelLaunch& launch);

// From now on (on this thread) blocks and threads run from the last to the first: what depends on their order, such as
// a missing barrier, gives other results.
void emulate_backwards(bool backwards);

}  // namespace ringtrain::cuda
