// Whether a convolution of the library for Hopper computes on this device what cuDNN does. Nobody has seen these
// kernels run when they are compiled, so a layer takes one only after this.
#pragma once

#include <string>

#include "backend/cuda/device/device.h"

namespace ringtrain::cuda::hopper {

// A few samples of the operation's shape, two groups of them where it has groups: the result beside that of cuDNN's
// plain operation (what is fused is added on the host, in fp32), and the sums beside those of the result as it is
// stored, in double precision. "": they agree to the roundings of their type; else what differs, or why it cannot be
// said.
std::string difference_from_plain(Device& device, const DnnOperation& operation);

}  // namespace ringtrain::cuda::hopper
