// These kernels compute Muon's momentum and the steps of Newton-Schulz between matrix products.
#pragma once

#include "backend/cuda/kernels/tensors.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// A block processes one chunk of one matrix (norm_chunk elements).
template <class>
__global__ void __launch_bounds__(tile_threads) muon_directions(MuonDirectionsArguments a) {
  if (a.scalars->applied == 0) return;
  const int index = index_of_block(a.ranges, a.count);
  const NormRange range = a.ranges[index];
  UpdateRule rule = *a.rule;
  rule.gradient_scale = a.scalars->gradient_scale;
  float* directions = a.directions + a.places[index];
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - range.first_block) * norm_chunk;
  const std::int64_t end = begin + norm_chunk < range.count ? begin + norm_chunk : range.count;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += tile_threads) {
    float momentum = a.momentum[range.begin + i];
    directions[i] = muon_direction(rule, a.gradients[range.begin + i], momentum);
    a.momentum[range.begin + i] = momentum;
  }
}

// A block processes one chunk of one range (norm_chunk elements).
template <class>
__global__ void __launch_bounds__(tile_threads) normalize_ranges(NormalizeRangesArguments a) {
  const int index = index_of_block(a.ranges, a.count);
  const NormRange range = a.ranges[index];
  const auto norm = static_cast<float>(sqrt(a.norms[index]));
  const float factor = 1.0f / (norm > a.epsilon ? norm : a.epsilon);
  const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) - range.first_block) * norm_chunk;
  const std::int64_t end = begin + norm_chunk < range.count ? begin + norm_chunk : range.count;
  for (std::int64_t i = range.begin + begin + threadIdx.x; i < range.begin + end; i += tile_threads)
    a.values[i] *= factor;
}

template <class>
__global__ void __launch_bounds__(tile_threads) blend(BlendArguments a) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * tile_threads + threadIdx.x;
  if (at < a.count) a.y[at] = a.alpha * a.x[at] + a.beta * a.y[at];
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
