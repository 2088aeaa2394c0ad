// Checks on a device that a convolution computes what cuDNN's plain operation computes. The library for Hopper needs
// this check, because the machine that compiles its kernels may have no GPU to run them. cuDNN's specialised engines
// need it, too: on an H200, one of cuDNN 9.14 computed a wrong weight gradient. A layer takes them only after this
// check.
#pragma once

#include <string>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda {

// Computes the operation for a few samples, in two groups if it has groups. The result is compared with the result of
// cuDNN's plain operation; the fused part is computed on the host in fp32. The sums are compared with sums of the
// stored result in double precision. Returns "" when both agree up to the rounding of their types. Otherwise returns
// the difference, or the reason why no comparison is possible.
std::string difference_from_plain(Device& device, const DnnOperation& operation);

}  // namespace ringtrain::cuda
