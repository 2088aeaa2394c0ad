// Messages between devices through host memory.
#pragma once

#include <memory>

#include "backend/cuda/device/device.h"
#include "cluster/links.h"

namespace ringtrain {

// A sent message is copied to page-locked memory, and `host` sends it from there. A received message takes the same way
// back. finish() waits until the host's part of a message is done. All messages must be in memory of allocate().
// `device` and `host` must outlive the result.
std::unique_ptr<Links> make_staged_links(cuda::Device& device, Links& host);

}  // namespace ringtrain
