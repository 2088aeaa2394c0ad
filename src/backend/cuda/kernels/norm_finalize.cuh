// These kernels of norms work on channels, after the sums over rows are known. Most have blocks of finalize_channels
// channels. For each channel finalize_parts threads then add up the partial sums, in double precision.
#pragma once

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/reduce.cuh"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

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
