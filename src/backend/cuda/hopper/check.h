// Checks on a device that a convolution of the library for Hopper computes what cuDNN computes. The machine that
// compiles these kernels may have no GPU to run them. Therefore a layer takes one of them only after this check.
#pragma once

#include <string>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda::hopper {

// Computes the operation for a few samples, in two groups if it has groups. The result is compared with the result of
// cuDNN's plain operation; the fused part is added on the host in fp32. The sums are compared with sums of the stored
// result in double precision. Returns "" when both agree up to the rounding of their types. Otherwise returns the
// difference, or the reason why no comparison is possible.
std::string difference_from_plain(Device& device, const DnnOperation& operation);

}  // namespace ringtrain::cuda::hopper
