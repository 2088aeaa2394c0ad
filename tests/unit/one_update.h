// An optimizer's update in one call. Trainer makes it in two, between which a device gets other work.
#pragma once

#include "optim/optimizer.h"

namespace ringtrain {

inline UpdateResult one_update(Optimizer& optimizer, Vector& weights, const Vector& gradients, const UpdateStep& step,
                               float loss_scale, float norm_momentum, Program* program = nullptr) {
  optimizer.queue_update(weights, gradients, step, loss_scale, norm_momentum, program);
  return optimizer.finish_update();
}

}  // namespace ringtrain
