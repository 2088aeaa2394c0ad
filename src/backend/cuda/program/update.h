// An optimizer's step on the device. A step has these parts: the norm of the gradient, the loss scale, clipping, trust
// ratios, the update with the program's copies of the weights, and the running statistics. An overflow in the gradient
// skips the update. One small copy at the end tells the host the result.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/program/base.h"

namespace ringtrain::cuda {

// Runs an optimizer's step on the device.
class Updater {
 public:
  virtual ~Updater() = default;
  // Queues a step. When `program` is not null, its copies of the weights are updated too.
  virtual void start(const Update& update, const ProgramBase* program, Vector& weights, const Vector& gradients,
                     std::span<const std::unique_ptr<Vector>> state) = 0;
  virtual UpdateResult finish() = 0;  // waits for the step
  virtual std::int64_t bytes() const = 0;
};
std::unique_ptr<Updater> make_updater(Device& device, std::function<void()> poll);

}  // namespace ringtrain::cuda
