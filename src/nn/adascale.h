// The formulas of AdaScale SGD (Johnson et al. 2020, arXiv:2007.05105, algorithm 1). A step at S times the base batch
// uses r times the learning rate that the schedule gives to the base batch. It counts as r steps at the base batch. CPU
// and GPU share the formulas.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ringtrain {

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
// is at least 1e-6 and the gradient at least 0. The averages are plain means over the first 1000 / S steps. After that
// they are moving averages with the decay max(1 - S / 1000, 0).
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
