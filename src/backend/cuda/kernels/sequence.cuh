// These kernels are for sequences: one-hot symbols, dropout and carried state.
#pragma once

#include "backend/cuda/kernels/element.cuh"
#include "backend/cuda/kernels/kernels.h"
#include "base/random.h"
#include "nn/math.h"

namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

template <class T, bool whole>
__device__ __forceinline__ void one_hot_rows(const OneHotArguments& a) {
  const Walk w = walk(octets_of(static_cast<int>(a.padded)), blockIdx.x, gridDim.x, blockIdx.y);
  if (!w.active) return;
  const int count = octet_size(w.octet, static_cast<int>(a.padded));
  for (std::int64_t row = w.row; row < a.samples * a.length; row += w.step) {  // time x samples + sample
    const std::int64_t time = quotient(row, a.samples), sample = row - time * a.samples;
    const int one = a.symbols[sample * a.length + time] - 8 * w.octet;
    Eight v;
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) v.v[i] = i == one ? 1.0f : 0.0f;
    store<T, whole>(a.output, row * a.padded + 8 * w.octet, count, v);
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) one_hot(OneHotArguments a) {
  if (a.padded % 8 == 0 && aligned(a.output))
    one_hot_rows<T, true>(a);
  else
    one_hot_rows<T, false>(a);
}

// A thread draws one output of the generator Philox. The output serves 8 of 128 units: every 16th. See nn/math.h.
template <class T>
__global__ void __launch_bounds__(tile_threads) dropout(DropoutArguments a) {
  const auto groups = static_cast<int>((a.units + 127) / 128);
  const Walk w = walk(16 * groups, blockIdx.x, gridDim.x, blockIdx.y);
  if (!w.active) return;
  const std::uint32_t threshold = dropout_threshold(a.probability);
  const auto scale = static_cast<float>(1 / (1 - threshold / 65536.0));
  const std::uint64_t key = a.state->dropout_key;
  const std::int64_t step = a.state->step, first_row = a.state->first_row;
  const std::int64_t first_unit = w.octet / 16 * 128 + w.octet % 16;
  for (std::int64_t row = w.row; row < a.samples * a.length; row += w.step) {
    const std::int64_t time = quotient(row, a.samples), sample = row - time * a.samples;
    const DropoutCounter counter = dropout_counter(step, a.layer, first_row + sample, time, w.octet);
    const Random4 random = philox(key, counter.low, counter.high);
    const T* from = static_cast<const T*>(a.x) + row * a.units;
    T* to = static_cast<T*>(a.y) + row * a.units;
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i) {
      const std::int64_t unit = first_unit + 16 * i;
      if (unit >= a.units) continue;
      const std::uint32_t bits = i < 4 ? random.v[i % 4] & 0xffffu : random.v[i % 4] >> 16;
      narrow(bits >= threshold ? widen(from[unit]) * scale : 0.0f, to[unit]);
    }
  }
}

// Rows are [sample][layer][h or c], in the host's order.
template <class T, bool whole, bool in>
__device__ __forceinline__ void state_rows(const StateArguments& a) {
  const Walk w = walk(octets_of(static_cast<int>(a.hidden)), blockIdx.x, gridDim.x, blockIdx.y);
  if (!w.active) return;
  const int count = octet_size(w.octet, static_cast<int>(a.hidden));
  for (std::int64_t row = w.row; row < 2 * a.layers * a.samples; row += w.step) {
    const std::int64_t sample = quotient(row, 2 * a.layers), rest = row - sample * 2 * a.layers;
    void* own = rest % 2 == 0 ? a.h : a.c;
    const std::int64_t at = row * a.hidden + 8 * w.octet;
    const std::int64_t own_at = (rest / 2 * a.samples + sample) * a.hidden + 8 * w.octet;
    if constexpr (in)
      store<T, whole>(own, own_at, count, load_floats<whole>(a.packed, at, count));
    else
      store<float, whole>(a.packed, at, count, widen(load<T, whole>(own, own_at, count)));
  }
}

template <class T>
__global__ void __launch_bounds__(tile_threads) state_in(StateArguments a) {
  if (a.hidden % 8 == 0 && aligned(a.packed, a.h, a.c))
    state_rows<T, true, true>(a);
  else
    state_rows<T, false, true>(a);
}

template <class T>
__global__ void __launch_bounds__(tile_threads) state_out(StateArguments a) {
  if (a.hidden % 8 == 0 && aligned(a.packed, a.h, a.c))
    state_rows<T, true, false>(a);
  else
    state_rows<T, false, false>(a);
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
