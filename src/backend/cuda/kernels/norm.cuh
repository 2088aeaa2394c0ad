// These are the kernels of norms. The first ones touch every element: groups are in blockIdx.z, tiles of rows in
// blockIdx.x, tiles of channels in blockIdx.y. The others work on channels, after the sums over rows are known.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

// Holds the position of this thread in its group. `affine` is the position in [groups][channels].
struct NormPlace {
  Walk walk;
  std::int64_t row0;  // rows before the group
  int channel, count;
  std::int64_t affine;
};
__device__ __forceinline__ NormPlace norm_place(std::int64_t rows_per_group, int channels) {
  NormPlace p;
  p.walk = walk(octets_of(channels), blockIdx.x, gridDim.x, blockIdx.y);
  p.row0 = static_cast<std::int64_t>(blockIdx.z) * rows_per_group;
  p.channel = 8 * p.walk.octet;
  p.count = octet_size(p.walk.octet, channels);
  p.affine = static_cast<std::int64_t>(blockIdx.z) * channels + p.channel;
  return p;
}

// A thread loads this number of rows at a time. The number is large enough to hide the latency of memory. It is small
// enough that a multiprocessor has the registers for two or three blocks.
template <class T, bool whole>
constexpr int rows_at_once = whole && sizeof(T) == 2 ? 2 : 1;

// Adds the values of eight channels to the first eight sums, and their products with `other` to the next eight.
__device__ __forceinline__ void add_to_sums(float (&sums)[16], const Eight& values, const Eight& other) {
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) {
    sums[i] += values.v[i];
    sums[8 + i] += values.v[i] * other.v[i];
  }
}

template <class T, bool whole>
__device__ __forceinline__ void norm_sums_rows(const NormSumsArguments& a, float (&sums)[16]) {
  constexpr int at_once = 2 * rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> x[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k)
      if (row + k * p.walk.step < a.rows_per_group)
        x[k] = load<T, whole>(a.x, (p.row0 + row + k * p.walk.step) * a.channels + p.channel, p.count);
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      const Eight v = widen(x[k]);
      add_to_sums(sums, v, v);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) norm_sums(NormSumsArguments a) {
  RINGTRAIN_SHARED(float, shared, [16 * tile_threads]);
  float sums[16] = {};
  if (a.channels % 8 == 0 && aligned(a.x))
    norm_sums_rows<T, true>(a, sums);
  else
    norm_sums_rows<T, false>(a, sums);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * a.blocks + blockIdx.x;
  column_totals<2>(sums, a.channels, blockIdx.y, a.partial + block * 2 * a.channels, shared);
}

template <class T, bool whole>
__device__ __forceinline__ void norm_apply_rows(const NormApplyArguments& a) {
  constexpr int at_once = rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const Eight scale = load_floats<whole>(a.scale, p.affine, p.count);
  Eight bias = load_floats<whole>(a.bias, p.affine, p.count);
  Eight other_scale;
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) other_scale.v[i] = 1;
  if (a.other_scale != nullptr) {
    other_scale = load_floats<whole>(a.other_scale, p.affine, p.count);
    const Eight other_bias = load_floats<whole>(a.other_bias, p.affine, p.count);
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) bias.v[i] += other_bias.v[i];
  }
  const std::int64_t mask_bytes = octets_of(a.channels);
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> x[at_once] = {}, other[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = (p.row0 + row + k * p.walk.step) * a.channels + p.channel;
      x[k] = load<T, whole>(a.x, at, p.count);
      if (a.other != nullptr) other[k] = load<T, whole>(a.other, at, p.count);
    }
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = p.row0 + row + k * p.walk.step;
      Eight y = widen(x[k]);
      const Eight o = widen(other[k]);
      unsigned bits = 0;
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) {
        y.v[i] = y.v[i] * scale.v[i] + bias.v[i];
        if (a.other != nullptr) y.v[i] += o.v[i] * other_scale.v[i];
        bits |= (!a.relu || y.v[i] > 0) && i < p.count ? 1u << i : 0u;
        if (a.relu && y.v[i] < 0) y.v[i] = 0;  // NaN stays
      }
      store<T, whole>(a.y, at * a.channels + p.channel, p.count, y);
      if (a.mask != nullptr) a.mask[at * mask_bytes + p.walk.octet] = static_cast<std::uint8_t>(bits);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) norm_apply(NormApplyArguments a) {
  if (a.channels % 8 == 0 && aligned(a.x, a.other, a.y, a.scale, a.bias, a.other_scale, a.other_bias))
    norm_apply_rows<T, true>(a);
  else
    norm_apply_rows<T, false>(a);
}

// Returns dr, which is dy where the mask has a bit, else 0.
__device__ __forceinline__ Eight masked(Eight dy, unsigned bits) {
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) dy.v[i] = (bits >> i & 1) != 0 ? dy.v[i] : 0.0f;
  return dy;
}

template <class T, bool whole>
__device__ __forceinline__ void norm_backward_sums_rows(const NormBackwardSumsArguments& a, float (&sums)[24]) {
  constexpr int at_once = rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const std::int64_t mask_bytes = octets_of(a.channels);
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> dy[at_once] = {}, x[at_once] = {}, other[at_once] = {};
    unsigned bits[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = p.row0 + row + k * p.walk.step;
      dy[k] = load<T, whole>(a.dy, at * a.channels + p.channel, p.count);
      x[k] = load<T, whole>(a.x, at * a.channels + p.channel, p.count);
      if (a.other != nullptr) other[k] = load<T, whole>(a.other, at * a.channels + p.channel, p.count);
      bits[k] = a.mask == nullptr ? 0xffu : a.mask[at * mask_bytes + p.walk.octet];
    }
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      const Eight dr = masked(widen(dy[k]), bits[k]), v = widen(x[k]), o = widen(other[k]);
      RINGTRAIN_UNROLL
      for (int i = 0; i < 8; ++i) {
        sums[i] += dr.v[i];
        sums[8 + i] += dr.v[i] * v.v[i];
        if (a.other != nullptr) sums[16 + i] += dr.v[i] * o.v[i];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 3) norm_backward_sums(NormBackwardSumsArguments a) {
  RINGTRAIN_SHARED(float, shared, [24 * tile_threads]);
  float sums[24] = {};
  if (a.channels % 8 == 0 && aligned(a.dy, a.x, a.other))
    norm_backward_sums_rows<T, true>(a, sums);
  else
    norm_backward_sums_rows<T, false>(a, sums);
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * a.blocks + blockIdx.x;
  if (a.other != nullptr) {
    column_totals<3>(sums, a.channels, blockIdx.y, a.partial + block * 3 * a.channels, shared);
  } else {
    float two[16];
    RINGTRAIN_UNROLL
    for (int i = 0; i < 16; ++i) two[i] = sums[i];
    column_totals<2>(two, a.channels, blockIdx.y, a.partial + block * 2 * a.channels, shared);
  }
}

// The coefficients of dx = a dr + b x + c for eight channels. along() computes dx.
struct Line {
  Eight a, b, c;
};
template <bool whole>
__device__ __forceinline__ Line line(const float* a, const float* b, const float* c, const NormPlace& p) {
  return {load_floats<whole>(a, p.affine, p.count), load_floats<whole>(b, p.affine, p.count),
          load_floats<whole>(c, p.affine, p.count)};
}
__device__ __forceinline__ Eight along(const Line& l, const Eight& dr, const Eight& x) {
  Eight d;
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) d.v[i] = l.a.v[i] * dr.v[i] + (l.b.v[i] * x.v[i] + l.c.v[i]);
  return d;
}

template <class T, bool whole, bool two>
__device__ __forceinline__ void norm_backward_apply_rows(const NormBackwardApplyArguments& a) {
  constexpr int at_once = two ? 1 : rows_at_once<T, whole>;
  const NormPlace p = norm_place(a.rows_per_group, a.channels);
  if (!p.walk.active) return;
  const Line own = line<whole>(a.a, a.b, a.c, p);
  Line others = own;
  if constexpr (two) others = line<whole>(a.other_a, a.other_b, a.other_c, p);
  const std::int64_t mask_bytes = octets_of(a.channels);
  for (std::int64_t row = p.walk.row; row < a.rows_per_group; row += at_once * p.walk.step) {
    Octet<T> dy[at_once] = {}, x[at_once] = {}, other[at_once] = {};
    unsigned bits[at_once] = {};
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = p.row0 + row + k * p.walk.step;
      dy[k] = load<T, whole>(a.dy, at * a.channels + p.channel, p.count);
      x[k] = load<T, whole>(a.x, at * a.channels + p.channel, p.count);
      if constexpr (two) other[k] = load<T, whole>(a.other, at * a.channels + p.channel, p.count);
      bits[k] = a.mask == nullptr ? 0xffu : a.mask[at * mask_bytes + p.walk.octet];
    }
    RINGTRAIN_UNROLL
    for (int k = 0; k < at_once; ++k) {
      if (row + k * p.walk.step >= a.rows_per_group) continue;
      const std::int64_t at = (p.row0 + row + k * p.walk.step) * a.channels + p.channel;
      const Eight dr = masked(widen(dy[k]), bits[k]);
      store<T, whole>(a.dx, at, p.count, along(own, dr, widen(x[k])));
      if (a.dr_output != nullptr) store<T, whole>(a.dr_output, at, p.count, dr);
      if constexpr (two) store<T, whole>(a.d_other, at, p.count, along(others, dr, widen(other[k])));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads, 2) norm_backward_apply(NormBackwardApplyArguments a) {
  const bool whole = a.channels % 8 == 0 && aligned(a.dy, a.x, a.other, a.dx, a.dr_output, a.d_other) &&
                     aligned(a.a, a.b, a.c, a.other_a, a.other_b, a.other_c);
  if (a.other == nullptr)
    whole ? norm_backward_apply_rows<T, true, false>(a) : norm_backward_apply_rows<T, false, false>(a);
  else
    whole ? norm_backward_apply_rows<T, true, true>(a) : norm_backward_apply_rows<T, false, true>(a);
}

// Most kernels from here on have blocks of finalize_channels channels. For each channel finalize_parts threads then add
// up the partial sums, in double precision.

// Adds up partial sums of several groups at a time, so that all threads work even when a group has few blocks.
struct PartialSums {
  const float* partial;                                         // [groups][blocks][sums_per_block][channels]
  int groups, channels, blocks, sums_per_block, first, second;  // first and second: which two sums
  int channel, part_row;
  int at_once, parts;  // at_once: groups at a time; parts: threads per group

  __device__ PartialSums(const float* from, int group_count, int channel_count, int block_count, int per_block,
                         int which)
      : partial(from),
        groups(group_count),
        channels(channel_count),
        blocks(block_count),
        sums_per_block(per_block),
        first(0),
        second(which),
        channel(static_cast<int>(blockIdx.x * finalize_channels + threadIdx.x % finalize_channels)),
        part_row(static_cast<int>(threadIdx.x / finalize_channels)),
        at_once(group_count < finalize_parts ? group_count : finalize_parts),
        parts(finalize_parts / at_once) {}

  // Adds up this thread's part of one of the groups from group0 on, and leaves the two sums in `shared`. After the next
  // barrier, total() returns the sums of group number group0 + part_row in the threads where owner() is true.
  __device__ void gather(int group0, double (&shared)[2][finalize_parts][finalize_channels]) const {
    const int group = group0 + part_row / parts, part = part_row % parts;
    double sum = 0, other = 0;
    if (part_row < at_once * parts && group < groups && channel < channels) {
      const float* from = partial + static_cast<std::int64_t>(group) * blocks * sums_per_block * channels + channel;
      RINGTRAIN_UNROLL_FOUR
      for (int block = part; block < blocks; block += parts) {
        const std::int64_t at = static_cast<std::int64_t>(block) * sums_per_block;
        sum += static_cast<double>(from[(at + first) * channels]);
        other += static_cast<double>(from[(at + second) * channels]);
      }
    }
    shared[0][part_row][threadIdx.x % finalize_channels] = sum;
    shared[1][part_row][threadIdx.x % finalize_channels] = other;
  }
  __device__ bool owner(int group0) const {
    return part_row < at_once && group0 + part_row < groups && channel < channels;
  }
  __device__ double total(int which, const double (&shared)[2][finalize_parts][finalize_channels]) const {
    double sum = 0;
    RINGTRAIN_UNROLL_FOUR
    for (int part = 0; part < parts; ++part)
      sum += shared[which][part_row * parts + part][threadIdx.x % finalize_channels];
    return sum;
  }
  // Adds up the values that the owners of these groups left in `shared`. Only threads with part_row 0 may call it.
  __device__ double over_groups(int group0, int which,
                                const double (&shared)[2][finalize_parts][finalize_channels]) const {
    double sum = 0;
    RINGTRAIN_UNROLL_FOUR
    for (int g = 0; g < at_once && group0 + g < groups; ++g) sum += shared[which][g][threadIdx.x % finalize_channels];
    return sum;
  }
};

// A warp joins the channels of one group of channels.
template <class>
__global__ void __launch_bounds__(tile_threads) norm_join_channels(NormJoinChannelsArguments a) {
  const int channel_groups = (a.channels + a.together - 1) / a.together;
  const std::int64_t warp = static_cast<std::int64_t>(blockIdx.x) * (tile_threads / 32) + threadIdx.x / 32;
  if (warp >= static_cast<std::int64_t>(a.groups) * channel_groups) return;
  const std::int64_t group = quotient(warp, channel_groups);
  const int first = static_cast<int>(warp - group * channel_groups) * a.together;
  const int rest = a.channels - first, count = rest < a.together ? rest : a.together;
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  double sum = 0, product = 0;
  for (int c = first + lane; c < first + count; c += 32) {
    const double weight = a.gamma != nullptr ? static_cast<double>(a.gamma[c]) : 1.0;
    const float* from = a.partial + group * a.blocks * a.sums_per_block * a.channels + c;
    RINGTRAIN_UNROLL_FOUR
    for (int block = 0; block < a.blocks; ++block) {
      const std::int64_t at = static_cast<std::int64_t>(block) * a.sums_per_block;
      sum += weight * static_cast<double>(from[at * a.channels]);
      product += weight * static_cast<double>(from[(at + a.which) * a.channels]);
    }
  }
  const double share = 1.0 / a.together;
  sum = warp_sum(sum) * share;
  product = warp_sum(product) * share;
  float* to = a.joined + group * 2 * a.channels + first;
  for (int c = lane; c < count; c += 32) {
    to[c] = static_cast<float>(sum);
    to[a.channels + c] = static_cast<float>(product);
  }
}

template <class T>
__global__ void __launch_bounds__(finalize_channels* finalize_parts) norm_finalize(NormFinalizeArguments a) {
  RINGTRAIN_SHARED(double, parts, [2][finalize_parts][finalize_channels]);
  RINGTRAIN_SHARED(double, results, [2][finalize_parts][finalize_channels]);
  const PartialSums sums(a.partial, a.groups, a.channels, a.blocks, 2, 1);
  const double count = static_cast<double>(a.rows_per_group);
  double mean_sum = 0, variance_sum = 0;
  for (int group0 = 0; group0 < a.groups; group0 += sums.at_once) {
    sums.gather(group0, parts);
    __syncthreads();
    if (sums.owner(group0)) {
      const double mean = sums.total(0, parts) / count;
      const double difference = sums.total(1, parts) / count - mean * mean;
      const double variance = difference < 0 ? 0 : difference;  // NaN stays
      const double inverse = 1 / sqrt(variance + static_cast<double>(a.epsilon));
      const auto scale = static_cast<float>(static_cast<double>(a.gamma[sums.channel]) * inverse);
      // The bias uses the stored scale, so x = mean gives beta even when the mean is far from zero.
      const auto bias =
          static_cast<float>(static_cast<double>(a.beta[sums.channel]) - mean * static_cast<double>(scale));
      const std::int64_t at = static_cast<std::int64_t>(group0 + sums.part_row) * a.channels + sums.channel;
      a.mean[at] = static_cast<float>(mean);
      a.inverse[at] = static_cast<float>(inverse);
      a.scale[at] = scale;
      a.bias[at] = bias;
      if (a.scale_as_type != nullptr) narrow(scale, static_cast<T*>(a.scale_as_type)[at]);
      if (a.bias_as_type != nullptr) narrow(bias, static_cast<T*>(a.bias_as_type)[at]);
      results[0][sums.part_row][threadIdx.x % finalize_channels] = mean;
      results[1][sums.part_row][threadIdx.x % finalize_channels] = a.mean_squares ? mean * mean + variance : variance;
    }
    __syncthreads();
    if (sums.part_row == 0) {
      mean_sum += sums.over_groups(group0, 0, results);
      variance_sum += sums.over_groups(group0, 1, results);
    }
  }
  if (sums.part_row != 0 || sums.channel >= a.channels || a.mean_statistic == nullptr) return;
  const double share = a.mean_squares ? 1 : static_cast<double>(a.state->statistic_scale);
  const double unbiased = a.mean_squares ? 1 : count / (count > 1 ? count - 1 : 1);
  set_or_add(a.mean_statistic + sums.channel, share * mean_sum, a.accumulate);
  set_or_add(a.variance_statistic + sums.channel, share * unbiased * variance_sum, a.accumulate);
}

template <class>
__global__ void __launch_bounds__(tile_threads) norm_inference(NormInferenceArguments a) {
  const auto channel = static_cast<int>(blockIdx.x * tile_threads + threadIdx.x);
  if (channel >= a.channels) return;
  const double deviation = sqrt(static_cast<double>(a.running_var[channel]) + static_cast<double>(a.epsilon));
  const auto scale = static_cast<float>(static_cast<double>(a.gamma[channel]) / deviation);
  a.scale[channel] = scale;
  a.bias[channel] = static_cast<float>(static_cast<double>(a.beta[channel]) -
                                       static_cast<double>(a.running_mean[channel]) * static_cast<double>(scale));
}

template <class>
__global__ void __launch_bounds__(finalize_channels* finalize_parts)
    norm_backward_finalize(NormBackwardFinalizeArguments a) {
  RINGTRAIN_SHARED(double, parts, [2][finalize_parts][finalize_channels]);
  RINGTRAIN_SHARED(double, results, [2][finalize_parts][finalize_channels]);
  const PartialSums sums(a.partial, a.groups, a.channels, a.blocks, a.sums_per_block, a.which);
  const double count = static_cast<double>(a.rows_per_group);
  double gamma_gradient = 0, beta_gradient = 0;
  for (int group0 = 0; group0 < a.groups; group0 += sums.at_once) {
    sums.gather(group0, parts);
    __syncthreads();
    if (sums.owner(group0)) {
      const std::int64_t at = static_cast<std::int64_t>(group0 + sums.part_row) * a.channels + sums.channel;
      const double sum = sums.total(0, parts), product = sums.total(1, parts);
      const auto mean = static_cast<double>(a.mean[at]), inverse = static_cast<double>(a.inverse[at]);
      const double slope = static_cast<double>(a.gamma[sums.channel]) * inverse;
      const double centred = product - mean * sum, factor = a.with_gamma ? inverse : slope;
      const auto b = static_cast<float>(-factor * inverse * inverse * centred / count);
      a.a[at] = static_cast<float>(slope);
      a.b[at] = b;
      a.c[at] = static_cast<float>(-factor * sum / count - static_cast<double>(b) * mean);
      results[0][sums.part_row][threadIdx.x % finalize_channels] = inverse * centred;
      results[1][sums.part_row][threadIdx.x % finalize_channels] = sum;
    }
    __syncthreads();
    if (sums.part_row == 0) {
      gamma_gradient += sums.over_groups(group0, 0, results);
      beta_gradient += sums.over_groups(group0, 1, results);
    }
  }
  if (sums.part_row != 0 || sums.channel >= a.channels) return;
  set_or_add(a.gamma_gradient + sums.channel, gamma_gradient, a.accumulate);
  set_or_add(a.beta_gradient + sums.channel, beta_gradient, a.accumulate);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
