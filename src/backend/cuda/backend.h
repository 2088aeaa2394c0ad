// The GPU backend: programs and flat vectors on one Device.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/program/options.h"

namespace ringtrain::cuda {

std::unique_ptr<Backend> make_backend(Device& device, BackendOptions options);

}  // namespace ringtrain::cuda
