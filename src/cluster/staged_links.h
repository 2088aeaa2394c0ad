// Messages between devices through host memory.
#pragma once

#include <memory>

#include "backend/cuda/device/device.h"
#include "cluster/links.h"

namespace ringtrain {

// What is sent is copied to page-locked memory first, and goes on by `host`; what is received comes the same way back.
// finish() waits until the host's part of a message is done. Messages are in memory that allocate() has given. `device`
// and `host` outlive it.
std::unique_ptr<Links> make_staged_links(cuda::Device& device, Links& host);

}  // namespace ringtrain
