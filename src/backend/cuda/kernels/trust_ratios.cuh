// LARS and LAMB run these kernels before the update. They compute one trust ratio for each tensor. The order of every
// sum depends on the ranges alone.
#pragma once

#include "backend/cuda/kernels/reduce.cuh"
#include "backend/cuda/kernels/tensors.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// A block processes one chunk of one range (norm_chunk elements).
template <class>
__global__ void __launch_bounds__(tile_threads) lamb_moments(LambMomentsArguments a) {
  RINGTRAIN_SHARED(double, shared, [tile_threads / 32]);
  if (a.scalars->applied == 0) return;
  const int index = index_of_block(a.ranges, a.count);
  const NormRange range = a.ranges[index];
  UpdateRule rule = *a.rule;
  rule.gradient_scale = a.scalars->gradient_scale;
  rule.weight_decay = a.trust[index].weight_decay;
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - range.first_block) * norm_chunk;
  const std::int64_t end = begin + norm_chunk < range.count ? begin + norm_chunk : range.count;
  double sum = 0;
  for (std::int64_t i = range.begin + begin + threadIdx.x; i < range.begin + end; i += tile_threads) {
    const std::int64_t state = i + a.trust[index].state_shift;
    float m = a.m[state], v = a.v[state];
    move_moments(rule, scaled_gradient(rule, a.gradients[i]), m, v);
    a.m[state] = m;
    a.v[state] = v;
    const auto direction = static_cast<double>(lamb_direction(rule, a.weights[i], m, v));
    sum += direction * direction;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.partial[blockIdx.x] = sum;
}

// A thread processes one range.
template <class>
__global__ void __launch_bounds__(tile_threads) trust_ratios(TrustRatiosArguments a) {
  const int range = static_cast<int>(blockIdx.x) * tile_threads + static_cast<int>(threadIdx.x);
  if (range >= a.count) return;
  UpdateRule rule = *a.rule;
  rule.gradient_scale = a.scalars->gradient_scale;
  const TrustRange trust = a.trust[range];
  a.ratios[range] =
      trust.has_trust_ratio == 0 ? 1.0f : trust_ratio(rule, trust.weight_decay, a.weights[range], a.other[range]);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
