// These kernels run the optimizer's step over the flat vectors: the trust ratios of LARS and LAMB, Muon's momentum and
// the steps of Newton-Schulz between matrix products, and then the update of the weights.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/flat.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// LARS and LAMB run these kernels before the update. They compute one trust ratio for each tensor. The order of every
// sum depends on the ranges alone.

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

// These kernels compute Muon's momentum and the steps of Newton-Schulz between matrix products.

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

// The kernel `update` changes the weights. When a program has its own copies of the weights, the same kernel writes
// them, from registers or through shared memory.

template <bool whole>
__device__ __forceinline__ Four load_four(const float* from, int count) {
  if constexpr (whole) {
    return *reinterpret_cast<const Four*>(from);
  } else {
    Four four{};
    RINGTRAIN_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < count) four.v[i] = from[i];
    return four;
  }
}
template <bool whole>
__device__ __forceinline__ void store_four(float* to, int count, const Four& four) {
  if constexpr (whole) {
    store_whole(to, four);
  } else {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 4; ++i)
      if (i < count) to[i] = four.v[i];
  }
}

// Holds the part of the rule that differs between tensors.
struct OwnRule {
  float gradient_scale, weight_decay, rate_factor;
  bool is_muons;
  const float* gradients;  // the gradients, or Muon's directions shifted so that places of the flat vector index them
  std::int64_t state_shift;
};

// Updates `count` (at most four) elements from `at` on and returns the new weights. The rule is read again at each
// call, from the first-level cache. The rule and the elements together would take too many registers, and no optimizer
// needs the whole rule.
template <bool whole>
__device__ __forceinline__ Four update_four(const UpdateArguments& a, const OwnRule& own, std::int64_t at, int count) {
  UpdateRule rule = *a.rule;
  rule.gradient_scale = own.gradient_scale;
  rule.weight_decay = own.weight_decay * rule.decay_factor;
  if (own.is_muons)
    make_muons(rule, own.rate_factor);
  else
    rule.learning_rate *= own.rate_factor;
  const bool has_second = a.state[1] != nullptr, moved_before = rule.kind == OptimizerKind::lamb;
  const std::int64_t state = at + own.state_shift;
  Four w = load_four<whole>(a.weights + at, count), first = load_four<whole>(a.state[0] + state, count), second{}, g{};
  if (has_second) second = load_four<whole>(a.state[1] + state, count);
  if (!moved_before) g = load_four<whole>(own.gradients + at, count);
  RINGTRAIN_UNROLL
  for (int i = 0; i < 4; ++i) w.v[i] = updated_weight(rule, w.v[i], g.v[i], first.v[i], second.v[i]);
  store_four<whole>(a.weights + at, count, w);
  if (!moved_before) {
    store_four<whole>(a.state[0] + state, count, first);
    if (has_second) store_four<whole>(a.state[1] + state, count, second);
  }
  if (a.average == nullptr) return w;
  // The share is read only now, after the other state is stored. Read earlier, it would make sm_100 spill registers.
  rule.new_share = *static_cast<const volatile float*>(&a.rule->new_share);
  Four average = load_four<whole>(a.average + state, count);
  RINGTRAIN_UNROLL
  for (int i = 0; i < 4; ++i) average.v[i] = averaged_weight(rule, average.v[i], w.v[i]);
  store_four<whole>(a.average + state, count, average);
  return w;
}
__device__ __forceinline__ bool may_be_whole(const UpdateArguments& a, const OwnRule& own, std::int64_t at) {
  return at % 4 == 0 && own.state_shift % 4 == 0 &&
         aligned(a.weights, own.gradients, a.state[0], a.state[1], a.average);
}

// Updates a tensor whose copy has the flat vector's order. The copy may have padding after each row; the padding stays
// as it is.
template <class T>
__device__ __forceinline__ void update_rows(const UpdateArguments& a, const OwnRule& rule, const UpdatePlace& place,
                                            std::int64_t block) {
  const TensorPlace& p = place.tensor;
  T* own = place.own == nullptr ? nullptr : static_cast<T*>(place.own) + p.own_offset;
  const std::int64_t count = p.outer * p.padded;
  const std::int64_t begin = block * copy_chunk, end = begin + copy_chunk < count ? begin + copy_chunk : count;
  if (p.padded == p.inner && may_be_whole(a, rule, p.flat_offset) && aligned(own)) {
    for (std::int64_t at = begin + 4 * threadIdx.x; at < end; at += 4 * tile_threads) {
      const int here = end - at < 4 ? static_cast<int>(end - at) : 4;
      if (here == 4) {
        const Four w = update_four<true>(a, rule, p.flat_offset + at, 4);
        if (own != nullptr) store_whole(own + at, w);
      } else {
        const Four w = update_four<false>(a, rule, p.flat_offset + at, here);
        RINGTRAIN_UNROLL
        for (int i = 0; i < 4; ++i)
          if (own != nullptr && i < here) narrow(w.v[i], own[at + i]);
      }
    }
    return;
  }
  for (std::int64_t at = begin + threadIdx.x; at < end; at += tile_threads) {
    const std::int64_t row = quotient(at, p.padded), column = at - row * p.padded;
    if (column >= p.inner) continue;
    const float w = update_four<false>(a, rule, p.flat_offset + row * p.inner + column, 1).v[0];
    if (own != nullptr) narrow(w, own[at]);
  }
}

// Updates a tensor in whose copy taps and inner elements are swapped.
template <class T>
__device__ __forceinline__ void update_taps(const UpdateArguments& a, const OwnRule& rule, const UpdatePlace& place,
                                            std::int64_t block, float (&shared)[copy_tile]) {
  const TensorPlace& p = place.tensor;
  const TapsPiece piece = taps_piece(p, block);
  const std::int64_t flat = p.flat_offset + piece.flat;
  const int count = piece.flat_count * p.taps;
  const bool whole = may_be_whole(a, rule, flat);
  for (int k = 4 * static_cast<int>(threadIdx.x); k < count; k += 4 * tile_threads) {
    const int here = count - k < 4 ? count - k : 4;
    const Four w =
        whole && here == 4 ? update_four<true>(a, rule, flat + k, 4) : update_four<false>(a, rule, flat + k, here);
    store_four<false>(shared + k, here, w);
  }
  __syncthreads();
  store_taps(p, piece, static_cast<T*>(place.own) + p.own_offset + piece.own, shared);
}

template <class T>
__device__ __forceinline__ void update_tensor(const UpdateArguments& a, const OwnRule& rule, const UpdatePlace& place,
                                              float (&shared)[copy_tile]) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) - place.tensor.first_block;
  if (place.tensor.taps == 1)
    update_rows<T>(a, rule, place, block);
  else
    update_taps<T>(a, rule, place, block, shared);
}

template <class T>
__global__ void __launch_bounds__(tile_threads) update(UpdateArguments a) {
  RINGTRAIN_SHARED(float, shared, [copy_tile]);
  if (a.scalars->applied == 0) return;
  const UpdatePlace place = place_of_block(a.places, a.count);
  const bool muons = place.matrix_factor > 0;
  const OwnRule rule{.gradient_scale = a.scalars->gradient_scale,
                     .weight_decay = place.weight_decay,
                     .rate_factor = muons                       ? place.matrix_factor
                                    : a.trust_ratios == nullptr ? a.scalars->rate_factor
                                                                : a.trust_ratios[place.range],
                     .is_muons = muons,
                     .gradients = muons ? a.directions + place.direction_shift : a.gradients,
                     .state_shift = place.state_shift};
  if (place.own_is_fp32)
    update_tensor<float>(a, rule, place, shared);
  else
    update_tensor<T>(a, rule, place, shared);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
