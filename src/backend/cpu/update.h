// The optimizer's step on the CPU.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

namespace ringtrain::cpu {

// The gradient's norm, clipping, trust ratios, the weights, the running statistics. Changes nothing where the norm is
// not finite.
UpdateResult run_update(int threads, const Kernels& kernels, const Update& update, Vector& weights,
                        const Vector& gradients, std::span<const std::unique_ptr<Vector>> state);

}  // namespace ringtrain::cpu
