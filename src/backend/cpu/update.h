// The optimizer's step on the CPU.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

namespace ringtrain::cpu {

// Computes the gradient's norm, the clipping and the trust ratios. Updates the weights and the running statistics.
// Nothing changes if the norm is not finite.
UpdateResult run_update(int threads, const Kernels& kernels, const Update& update, Vector& weights,
                        const Vector& gradients, std::span<const std::unique_ptr<Vector>> state);

}  // namespace ringtrain::cpu
