// The optimizers' formulas for one element of a tensor, and the trust ratio of a whole tensor. CPU and GPU share them.
// sgd (without dampening), adam, adamw and rmsprop follow torch.optim. The others cite their paper.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "nn/math.h"
#include "nn/parameters.h"

namespace ringtrain {

// The kinds, each with how many values of state it keeps for each weight. muon is the kind of Muon's matrices; the
// other tensors use the rule of another optimizer.
#define RINGTRAIN_OPTIMIZER_KINDS(KIND) \
  KIND(sgd, 1)                          \
  KIND(lars, 1)                         \
  KIND(adam, 2)                         \
  KIND(adamw, 2)                        \
  KIND(lamb, 2)                         \
  KIND(rmsprop, 1)                      \
  KIND(rmsprop_to_sgd, 2)               \
  KIND(schedule_free_sgd, 1)            \
  KIND(schedule_free_adamw, 2)          \
  KIND(muon, 1)

#define RINGTRAIN_NAME(kind, values) kind,
enum class OptimizerKind { RINGTRAIN_OPTIMIZER_KINDS(RINGTRAIN_NAME) };
#undef RINGTRAIN_NAME
#define RINGTRAIN_VALUES(kind, values) values,
constexpr int state_values[] = {RINGTRAIN_OPTIMIZER_KINDS(RINGTRAIN_VALUES)};  // by kind
#undef RINGTRAIN_VALUES
constexpr int optimizer_kinds = sizeof(state_values) / sizeof(state_values[0]);

// The inputs of an update, apart from the vectors. Some members differ between tensors: weight_decay, and learning_rate
// if the optimizer has a trust ratio. The trust ratio multiplies learning_rate. For Muon's matrices, make_muons() also
// changes kind and learning_rate.
struct UpdateRule {
  OptimizerKind kind = OptimizerKind::sgd;
  float learning_rate = 0;
  float gradient_scale = 1;  // 1 / loss scale, times the factor of clipping by the global norm
  float clip_value = 0;      // elements of the scaled gradient are cut to +-clip_value; 0: off
  float momentum = 0;     // sgd: u = momentum u + g; w -= lr u (the rate stays outside: Goyal et al. 2017, remark 2);
                          // schedule_free: the weight of the average in y, the paper's beta
  bool nesterov = false;  // sgd: w -= lr (g + momentum u)
  bool rate_inside = false;  // sgd: v = momentum correction v + lr g; w -= v (nesterov: w -= lr g + momentum v)
  float correction = 1;      // rate / rate of the last applied update, or 1
  // 1 - momentum, 1 - beta1 and 1 - beta2 (Kingma and Ba 2015; rmsprop: beta2 is torch's alpha), rounded once. A float
  // close to 1 could not hold the betas of a long half-life.
  float momentum_share = 1, beta1_share = 1, beta2_share = 1;
  float epsilon = 0;
  float bias_correction1 = 1;  // 1 - beta1^t in the applied update number t = 1, 2, ...
  float bias_correction2 = 1;  // sqrt(1 - beta2^t)
  // g += decay w. adamw and muon: w *= 1 - lr decay instead (Loshchilov and Hutter 2019; muon: lr is matrix_rate). lamb
  // and schedule_free_adamw: decay w is added to the direction.
  float weight_decay = 0;
  float decay_factor = 1;       // multiplies the weight decay of every tensor (optimizer.weight_decay_by)
  float trust_coefficient = 0;  // lars
  bool mlperf = false;          // lars: MLPerf's rule for a gradient of zero
  float sgd_share = 0;          // rmsprop_to_sgd: alpha_SGD, from 0 (RMSprop) to 1 (SGD)
  float rmsprop_share = 0;      // rmsprop_to_sgd: alpha_RMSprop, (1 - sgd_share) x RMSprop's rate / learning_rate
  float average_share = 0;      // schedule_free: the weight of z in the new average, the paper's c
  float matrix_rate = 0;        // muon: the rate of its matrices, before each matrix's factor
  float new_share = 0;          // average.half_life: the weight of the new weights in their average, 1 - rho
};

// The elements [begin, end) of the flat vector that belong to a trained tensor, or the part of them that this rank
// updates. Padding is not included.
struct UpdateRange {
  std::int64_t begin = 0, end = 0;
  float weight_decay = 0;
  ParameterKind kind = ParameterKind::weight;
  bool has_trust_ratio = false;  // false: its rate is the rule's rate
  // For one of Muon's matrices: where its direction begins in Update::directions, and the factor of its rate.
  std::int64_t direction = -1;  // -1: not a matrix of Muon
  float matrix_factor = 0;      // 0: not a matrix of Muon
  // The place in the optimizer's state vectors where the range's state begins. -1: at `begin`, as on a rank that
  // updates the whole model.
  std::int64_t own_state = -1;
  std::int64_t state() const { return own_state < 0 ? begin : own_state; }
  bool operator==(const UpdateRange&) const = default;
};

// Returns whether the optimizer multiplies the rates of tensors by trust ratios.
constexpr bool has_trust_ratio(OptimizerKind kind) {
  return kind == OptimizerKind::lars || kind == OptimizerKind::lamb;
}
// Returns whether the optimizer keeps two values of state for each weight. The other optimizers keep one.
constexpr bool has_second_state(OptimizerKind kind) {
  return state_values[static_cast<int>(kind)] == 2;
}

RINGTRAIN_HD float scaled_gradient(const UpdateRule& r, float g) {
  g *= r.gradient_scale;
  if (r.clip_value > 0) g = g > r.clip_value ? r.clip_value : g < -r.clip_value ? -r.clip_value : g;
  return g;
}

// `momentum` is the optimizer's state of this element. LARS (You et al. 2017, algorithm 1) has the learning rate inside
// the momentum buffer: v = momentum v + lr ratio (g + decay w); w -= v.
RINGTRAIN_HD float sgd_update(const UpdateRule& r, float w, float g, float& momentum) {
  g = scaled_gradient(r, g) + r.weight_decay * w;
  if (r.rate_inside) {
    momentum = r.momentum * r.correction * momentum + r.learning_rate * g;
    return w - (r.nesterov ? r.learning_rate * g + r.momentum * momentum : momentum);
  }
  momentum = r.momentum * momentum + g;
  return w - r.learning_rate * (r.nesterov ? g + r.momentum * momentum : momentum);
}

// Moves a running mean towards a new value, whose weight in it is `share`. A mean of squares stays at least 0.
RINGTRAIN_HD float moved(float mean, float value, float share) {
  return mean + share * (value - mean);
}
// `m` and `v` are the running means of the gradient and of its square.
RINGTRAIN_HD void move_moments(const UpdateRule& r, float g, float& m, float& v) {
  m = moved(m, g, r.beta1_share);
  v = moved(v, g * g, r.beta2_share);
}
RINGTRAIN_HD float adam_update(const UpdateRule& r, float w, float g, float& m, float& v) {
  const bool decoupled = r.kind == OptimizerKind::adamw;
  g = scaled_gradient(r, g) + (decoupled ? 0.0f : r.weight_decay * w);
  if (decoupled) w -= r.learning_rate * r.weight_decay * w;
  move_moments(r, g, m, v);
  return w - r.learning_rate / r.bias_correction1 * m / (__builtin_sqrtf(v) / r.bias_correction2 + r.epsilon);
}

// Returns the direction of LAMB (You et al. 2020, in the form of apex's FusedLAMB). The step is lr x ratio x direction.
// The ratio of a tensor needs the norm of the tensor's whole direction, so an update has two passes: first
// move_moments() for all elements, then the weights.
RINGTRAIN_HD float lamb_direction(const UpdateRule& r, float w, float m, float v) {
  return m / r.bias_correction1 / (__builtin_sqrtf(v) / r.bias_correction2 + r.epsilon) + r.weight_decay * w;
}

// `v` is the running mean of the squared gradient. Its bias is not corrected.
RINGTRAIN_HD float rmsprop_update(const UpdateRule& r, float w, float g, float& v) {
  g = scaled_gradient(r, g) + r.weight_decay * w;
  v = moved(v, g * g, r.beta2_share);
  return w - r.learning_rate * g / (__builtin_sqrtf(v) + r.epsilon);
}

// Akiba et al. 2017: training starts with RMSprop, which gradually becomes SGD with momentum. Each has a rate of its
// own; learning_rate is that of SGD.
RINGTRAIN_HD float rmsprop_to_sgd_update(const UpdateRule& r, float w, float g, float& momentum, float& v) {
  g = scaled_gradient(r, g) + r.weight_decay * w;
  v = moved(v, g * g, r.beta2_share);
  momentum = r.momentum * momentum + (r.sgd_share + r.rmsprop_share / (__builtin_sqrtf(v) + r.epsilon)) * g;
  return w - r.learning_rate * momentum;
}

// Schedule-free learning (Defazio et al. 2024, equations 1 to 3). The gradient is taken at y = (1 - momentum) z +
// momentum x, where x is the average of all z. The state is z. For a step u,
//
//   z' = z - lr u,    x' = (1 - c) x + c z',    y' = (1 - momentum) z' + momentum x'
//
// The code below uses only y and z, as the authors' programs do.
RINGTRAIN_HD float schedule_free_update(const UpdateRule& r, float y, float u, float& z) {
  const float c = r.average_share;
  const float next = y + c * (z - y) - r.learning_rate * (1.0f - r.momentum * (1.0f - c)) * u;
  z -= r.learning_rate * u;
  return next;
}
RINGTRAIN_HD float schedule_free_sgd_update(const UpdateRule& r, float y, float g, float& z) {
  return schedule_free_update(r, y, scaled_gradient(r, g) + r.weight_decay * y, z);
}
// `v` is the running mean of the squared gradient. Its bias is corrected as in Adam, as in the authors' program since
// version 1.4. The paper instead has sqrt(1 - beta2^t) in the rate, which is less stable.
RINGTRAIN_HD float schedule_free_adamw_update(const UpdateRule& r, float y, float g, float& z, float& v) {
  g = scaled_gradient(r, g);
  v = moved(v, g * g, r.beta2_share);
  return schedule_free_update(r, y, g / (__builtin_sqrtf(v) / r.bias_correction2 + r.epsilon) + r.weight_decay * y, z);
}
// Returns the average x of one element.
RINGTRAIN_HD float schedule_free_average(float momentum, float y, float z) {
  return y + (1.0f - momentum) / momentum * (y - z);
}

// Returns the direction of Muon (Jordan 2024, as in torch.optim.Muon) in Nesterov's form. It is orthogonalised as a
// matrix afterwards (backend/vector_operations.h). `momentum` is a running mean.
RINGTRAIN_HD float muon_direction(const UpdateRule& r, float g, float& momentum) {
  g = scaled_gradient(r, g);
  momentum = moved(momentum, g, r.momentum_share);
  return g + r.momentum * (momentum - g);
}
// `o` is an element of the orthogonalised direction. The weight decay is decoupled, and the matrix's factor does not
// multiply it.
RINGTRAIN_HD float muon_update(const UpdateRule& r, float w, float o) {
  return w - r.matrix_rate * r.weight_decay * w - r.learning_rate * o;
}
// Changes the rule of the other tensors into the rule of one of Muon's matrices.
RINGTRAIN_HD void make_muons(UpdateRule& r, float matrix_factor) {
  r.kind = OptimizerKind::muon;
  r.learning_rate = r.matrix_rate * matrix_factor;
}

// Returns the new weight of one element. `first` and `second` are its state. Optimizers without a second state do not
// use `second`. lamb changes neither, because move_moments() has updated both before. For muon, `g` is an element of
// the orthogonalised direction, and its state was updated before too.
RINGTRAIN_HD float updated_weight(const UpdateRule& r, float w, float g, float& first, float& second) {
  switch (r.kind) {
    case OptimizerKind::sgd:
    case OptimizerKind::lars:
      return sgd_update(r, w, g, first);
    case OptimizerKind::adam:
    case OptimizerKind::adamw:
      return adam_update(r, w, g, first, second);
    case OptimizerKind::lamb:
      return w - r.learning_rate * lamb_direction(r, w, first, second);
    case OptimizerKind::rmsprop:
      return rmsprop_update(r, w, g, first);
    case OptimizerKind::rmsprop_to_sgd:
      return rmsprop_to_sgd_update(r, w, g, first, second);
    case OptimizerKind::schedule_free_sgd:
      return schedule_free_sgd_update(r, w, g, first);
    case OptimizerKind::schedule_free_adamw:
      return schedule_free_adamw_update(r, w, g, first, second);
    case OptimizerKind::muon:
      return muon_update(r, w, g);
  }
  return w;
}

// Returns the new exponential average of one weight (average.half_life). With a share of 1 it is the weight itself, bit
// for bit.
RINGTRAIN_HD float averaged_weight(const UpdateRule& r, float average, float w) {
  return r.new_share >= 1 ? w : moved(average, w, r.new_share);
}

// Returns the factor of a tensor's learning rate. `weights` is the squared norm of the tensor. `other` is the squared
// norm of its gradient before the rule's gradient_scale (lars), or of its lamb_direction() (lamb).
//
//   lars  coefficient |w| / (|g| + decay |w|)    1 if the weights are zero, which would otherwise never change
//                                                mlperf: 1 also if the gradient is zero
//   lamb  |w| / |u|                              1 if either is zero
RINGTRAIN_HD float trust_ratio(const UpdateRule& r, float weight_decay, double weights, double other) {
  const double w = __builtin_sqrt(weights);
  if (r.kind == OptimizerKind::lamb) {
    const double u = __builtin_sqrt(other);
    return w > 0 && u > 0 ? static_cast<float>(w / u) : 1.0f;
  }
  const double g = __builtin_sqrt(other) * static_cast<double>(r.gradient_scale);
  const double divisor = g + static_cast<double>(weight_decay) * w;
  const bool applies = w > 0 && divisor > 0 && (g > 0 || !r.mlperf);
  return applies ? static_cast<float>(static_cast<double>(r.trust_coefficient) * w / divisor) : 1.0f;
}

// The formulas of AdaScale SGD (Johnson et al. 2020, arXiv:2007.05105, algorithm 1). A step at S times the base batch
// uses r times the learning rate that the schedule gives to the base batch. It counts as r steps at the base batch. CPU
// and GPU share the formulas.

// Averages over the steps so far. The gain is computed from them. G is the gradient of the loss, and Sigma is the
// covariance matrix of a sample's gradient (optim/noise_scale.h).
struct AdaScaleAverages {
  double variance = 0;  // sigma^2: tr(Sigma) of a base batch's mean gradient
  double gradient = 0;  // mu^2: |G|^2
  double steps = 0;     // applied steps with a finite measurement
};

// The inputs of the gain, in addition to the gradient's norm.
struct AdaScaleStep {
  double times = 1;           // S = batch / base batch, above 1
  double batch = 0;           // samples of the step
  double small_batch = 0;     // samples of each small batch, less than `batch`
  AdaScaleAverages averages;  // averages over the earlier steps
  // The index of an element of the gradient vector. This element holds a sum over the small batches: the squared norms
  // of what each of them has added to the gradient, including the loss scale.
  std::int64_t small_norms = -1;
};

// Returns the averages including this step. `squared_norm` is that of the step's gradient, and `small_norms` is the sum
// described above. Both are without the loss scale. The estimates are unbiased, as in optim/noise_scale.h. The variance
// is at least 1e-6 and the gradient at least 0. As in fairscale, the gain of a step counts the step's own measurement.
// The averages are plain means over the first 1000 / S steps. After that they are moving averages with the decay
// max(1 - S / 1000, 0).
RINGTRAIN_HD AdaScaleAverages with_step(const AdaScaleStep& s, double squared_norm, double small_norms) {
  AdaScaleAverages a = s.averages;
  // Each small batch adds 1 / count of its mean gradient.
  const double count = s.batch / s.small_batch, small = count * small_norms;
  if (!(small - small == 0) || !(squared_norm - squared_norm == 0)) return a;
  const double trace = (small - squared_norm) / (1 / s.small_batch - 1 / s.batch);
  const double gradient = (s.batch * squared_norm - s.small_batch * small) / (s.batch - s.small_batch);
  const double variance = trace * s.times / s.batch;
  a.steps += 1;
  double share = s.times < 1000 ? s.times / 1000 : 1;
  if (share * a.steps < 1) share = 1 / a.steps;
  a.variance += share * ((variance > 1e-6 ? variance : 1e-6) - a.variance);
  a.gradient += share * ((gradient > 0 ? gradient : 0) - a.gradient);
  return a;
}

// Returns the gain r, from 1 to S. It is 1 before the first step. r / S is the efficiency of the batch (gain() in
// optim/noise_scale.h).
RINGTRAIN_HD double adascale_gain(const AdaScaleAverages& a, double times) {
  if (!(a.steps > 0)) return 1;
  const double r = (a.variance + a.gradient) / (a.variance / times + a.gradient);
  return r < 1 ? 1 : r > times ? times : r;
}

}  // namespace ringtrain
