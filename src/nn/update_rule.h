// The optimizers' element-wise updates: torch.optim's SGD (without dampening), Adam and AdamW, and SGD with the rate
// inside the momentum buffer, which torch.optim does not have.
#pragma once

#include <cstdint>

#include "nn/math.h"
#include "nn/parameters.h"

namespace ringtrain {

enum class OptimizerKind { sgd, adam, adamw };

// Everything that an update needs beside the vectors. Only weight_decay differs between tensors.
struct UpdateRule {
  OptimizerKind kind = OptimizerKind::sgd;
  float learning_rate = 0;
  float gradient_scale = 1;  // 1 / loss scale, times the clipping by global norm
  float momentum = 0;        // sgd: u = momentum u + g; w -= lr u (the rate stays outside: Goyal et al. 2017, remark 2)
  bool nesterov = false;     // sgd: w -= lr (g + momentum u)
  bool rate_inside = false;  // sgd: v = momentum correction v + lr g; w -= v (nesterov: w -= lr g + momentum v)
  float correction = 1;      // the rate / the rate of the last applied update, or 1
  float beta1 = 0, beta2 = 0, epsilon = 0;  // Kingma and Ba 2015
  float bias_correction1 = 1;               // 1 - beta1^t in the applied update number t = 1, 2, ...
  float bias_correction2 = 1;               // sqrt(1 - beta2^t)
  float weight_decay = 0;  // sgd, adam: g += decay w; adamw: w *= 1 - lr decay first (Loshchilov and Hutter 2019)
};

// A trained tensor's elements [begin, end) of the flat vector, without padding.
struct UpdateRange {
  std::int64_t begin = 0, end = 0;
  float weight_decay = 0;
  ParameterKind kind = ParameterKind::weight;
};

// `momentum` is the optimizer's state of this element.
RINGTRAIN_HD float sgd_update(const UpdateRule& r, float w, float g, float& momentum) {
  g = g * r.gradient_scale + r.weight_decay * w;
  if (r.rate_inside) {
    momentum = r.momentum * r.correction * momentum + r.learning_rate * g;
    return w - (r.nesterov ? r.learning_rate * g + r.momentum * momentum : momentum);
  }
  momentum = r.momentum * momentum + g;
  return w - r.learning_rate * (r.nesterov ? g + r.momentum * momentum : momentum);
}

// `m`, `v`: running means of the gradient and of its square.
RINGTRAIN_HD float adam_update(const UpdateRule& r, float w, float g, float& m, float& v) {
  const bool decoupled = r.kind == OptimizerKind::adamw;
  g = g * r.gradient_scale + (decoupled ? 0.0f : r.weight_decay * w);
  if (decoupled) w -= r.learning_rate * r.weight_decay * w;
  m = r.beta1 * m + (1.0f - r.beta1) * g;
  v = r.beta2 * v + (1.0f - r.beta2) * g * g;
  return w - r.learning_rate / r.bias_correction1 * m / (__builtin_sqrtf(v) / r.bias_correction2 + r.epsilon);
}

}  // namespace ringtrain
