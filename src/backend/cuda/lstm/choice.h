// Which recurrent calls compute a stack of LSTM layers: one for all of them or one each, and by which of cuDNN's
// algorithms.
#pragma once

#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

// `stack`: all layers. One plan for all of them, or one per layer in order; `joinable`: nothing happens between the
// layers. Throws Error with cuDNN's words where not even the standard algorithm finds a plan.
std::vector<const RnnPlan*> choose_lstm_plans(Device& device, FusionTable& table, const RnnOperation& stack,
                                              bool joinable);

}  // namespace ringtrain::cuda
