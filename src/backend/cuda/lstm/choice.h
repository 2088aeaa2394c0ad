// Chooses the recurrent calls that compute a stack of LSTM layers: one call for all layers or one call per layer, and
// cuDNN's algorithm for each call.
#pragma once

#include <vector>

#include "backend/cuda/device/device.h"
#include "backend/cuda/program/fusion.h"

namespace ringtrain::cuda {

// `stack` describes all layers. `joinable` says that no dropout lies between the layers. Returns one plan for all
// layers, or one plan per layer in order. Throws Error with cuDNN's reason when even the standard algorithm has no
// plan.
std::vector<const RnnPlan*> choose_lstm_plans(Device& device, FusionTable& table, const RnnOperation& stack,
                                              bool joinable);

}  // namespace ringtrain::cuda
