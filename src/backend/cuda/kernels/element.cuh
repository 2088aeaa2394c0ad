// Loads and stores elements of device memory, one or eight at a time, and sums them over warps and blocks. Eight
// elements are one access of 16 bytes in 16-bit types, and two in fp32.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/tiles.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define RINGTRAIN_KERNEL_SPACE on_device
#define RINGTRAIN_UNROLL _Pragma("unroll")
#define RINGTRAIN_UNROLL_FOUR _Pragma("unroll 4")
// Declares a block's shared memory: RINGTRAIN_SHARED(float, sums, [32][8]). The emulation of the tests fills this
// memory with NaNs when a block first uses it.
#define RINGTRAIN_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#else
// Code that compiles kernels as C++ defines CUDA's keywords first (tests/emulation/cuda_emulation.h).
#include "base/small_floats.h"
#define RINGTRAIN_KERNEL_SPACE emulated
#define RINGTRAIN_UNROLL
#define RINGTRAIN_UNROLL_FOUR
#endif

// The namespace has two names, so that the host stubs of device code and the emulation can be linked into one program.
namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};

#if defined(__CUDACC__)
__device__ __forceinline__ float widen(Bf16 x) {
  return __bfloat162float(__ushort_as_bfloat16(x.bits));
}
__device__ __forceinline__ float widen(Fp16 x) {
  return __half2float(__ushort_as_half(x.bits));
}
__device__ __forceinline__ void narrow(float x, Bf16& to) {
  to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ void narrow(float x, Fp16& to) {
  to.bits = __half_as_ushort(__float2half_rn(x));
}
// Converts two neighbours in one instruction. The first is in the low half of the result.
__device__ __forceinline__ std::uint32_t narrow_pair(float first, float second, Bf16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}
__device__ __forceinline__ std::uint32_t narrow_pair(float first, float second, Fp16) {
  const __half2 pair = __floats2half2_rn(first, second);
  std::uint32_t word;
  memcpy(&word, &pair, sizeof(word));
  return word;
}
#else
inline float widen(Bf16 x) {
  return from_bf16(x.bits);
}
inline float widen(Fp16 x) {
  return from_fp16(x.bits);
}
inline void narrow(float x, Bf16& to) {
  to.bits = to_bf16(x);
}
inline void narrow(float x, Fp16& to) {
  to.bits = to_fp16(x);
}
inline std::uint32_t narrow_pair(float first, float second, Bf16) {
  return static_cast<std::uint32_t>(to_bf16(first)) | static_cast<std::uint32_t>(to_bf16(second)) << 16;
}
inline std::uint32_t narrow_pair(float first, float second, Fp16) {
  return static_cast<std::uint32_t>(to_fp16(first)) | static_cast<std::uint32_t>(to_fp16(second)) << 16;
}
#endif
__device__ __forceinline__ float widen(float x) {
  return x;
}
__device__ __forceinline__ void narrow(float x, float& to) {
  to = x;
}

// Eight elements as they are in memory.
template <class T>
struct alignas(16) Octet {
  std::uint32_t words[4];
};
template <>
struct alignas(16) Octet<float> {
  float values[8];
};
struct Eight {
  float v[8];
};

template <class T>
__device__ __forceinline__ Eight widen(const Octet<T>& from) {
  Eight to;
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i)
    to.v[i] = widen(T{static_cast<std::uint16_t>(i % 2 == 0 ? from.words[i / 2] & 0xffffu : from.words[i / 2] >> 16)});
  return to;
}
__device__ __forceinline__ Eight widen(const Octet<float>& from) {
  Eight to;
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) to.v[i] = from.values[i];
  return to;
}
template <class T>
__device__ __forceinline__ void narrow(const Eight& from, Octet<T>& to) {
  RINGTRAIN_UNROLL
  for (int i = 0; i < 4; ++i) to.words[i] = narrow_pair(from.v[2 * i], from.v[2 * i + 1], T{});
}
__device__ __forceinline__ void narrow(const Eight& from, Octet<float>& to) {
  RINGTRAIN_UNROLL
  for (int i = 0; i < 8; ++i) to.values[i] = from.v[i];
}

__device__ __forceinline__ void set(Octet<float>& octet, int i, float x) {
  octet.values[i] = x;
}
template <class T>
__device__ __forceinline__ void set(Octet<T>& octet, int i, T x) {
  octet.words[i / 2] |= static_cast<std::uint32_t>(x.bits) << (16 * (i % 2));
}

// Loads the elements [at, at + count) of `base`, count <= 8, and fills the rest with zeros. `whole` promises that count
// is 8 and that the address is a multiple of 16.
template <class T, bool whole>
__device__ __forceinline__ Octet<T> load(const void* base, std::int64_t at, int count) {
  const T* from = static_cast<const T*>(base) + at;
  if constexpr (whole) {
    return *reinterpret_cast<const Octet<T>*>(from);
  } else {
    Octet<T> octet{};
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i)
      if (i < count) set(octet, i, from[i]);
    return octet;
  }
}
template <bool whole>
__device__ __forceinline__ Eight load_floats(const float* base, std::int64_t at, int count) {
  return widen(load<float, whole>(base, at, count));
}
template <class T, bool whole>
__device__ __forceinline__ void store(void* base, std::int64_t at, int count, const Eight& values) {
  T* to = static_cast<T*>(base) + at;
  if constexpr (whole) {
    Octet<T> octet;  // the octet is made in registers first, so that one wide store suffices
    narrow(values, octet);
    *reinterpret_cast<Octet<T>*>(to) = octet;
  } else {
    RINGTRAIN_UNROLL
    for (int i = 0; i < 8; ++i)
      if (i < count) narrow(values.v[i], to[i]);
  }
}

// Holds four neighbouring elements. fp32 vectors are read 16 bytes at a time.
struct alignas(16) Four {
  float v[4];
};
struct alignas(8) FourHalves {
  std::uint32_t words[2];
};
// Stores four elements in one access.
__device__ __forceinline__ void store_whole(float* to, const Four& four) {
  *reinterpret_cast<Four*>(to) = four;
}
template <class T>
__device__ __forceinline__ void store_whole(T* to, const Four& four) {
  FourHalves halves;
  RINGTRAIN_UNROLL
  for (int i = 0; i < 2; ++i) halves.words[i] = narrow_pair(four.v[2 * i], four.v[2 * i + 1], T{});
  *reinterpret_cast<FourHalves*>(to) = halves;
}

// Returns whether all of these pointers may be read 16 bytes at a time. Null is allowed.
template <class... Pointers>
__device__ __forceinline__ bool aligned(Pointers... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) | ...) % 16) == 0;
}

// Divides numbers that nearly always fit 32 bits. The 64-bit division takes ten times as long.
__device__ __forceinline__ std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

// Holds the elements of [rows, channels] that this thread processes: an octet of channels, and every step-th row from
// `row` on. See tiles.h.
struct Walk {
  std::int64_t row, step;
  int octet;
  bool active;
};
__device__ __forceinline__ Walk walk(int octets, unsigned row_tile, unsigned row_tiles, unsigned column_tile) {
  const int columns = tile_columns(octets), rows = tile_rows(octets), thread = static_cast<int>(threadIdx.x);
  const int row = thread / columns;
  Walk w;
  w.octet = static_cast<int>(column_tile) * columns + thread % columns;
  w.active = row < rows && w.octet < octets;
  w.row = static_cast<std::int64_t>(row_tile) * rows + row;
  w.step = static_cast<std::int64_t>(row_tiles) * rows;
  return w;
}
__device__ __forceinline__ int octet_size(int octet, int channels) {
  return channels - 8 * octet < 8 ? channels - 8 * octet : 8;
}

// These functions sum over warps and blocks. The order depends on sizes alone, so every run has the same bits.

constexpr unsigned all_lanes = 0xffffffffu;

// Adds the values of a warp; every lane gets the sum.
template <class V>
__device__ __forceinline__ V warp_sum(V value) {
  RINGTRAIN_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(all_lanes, value, distance);
  return value;
}
__device__ __forceinline__ float warp_maximum(float value) {
  RINGTRAIN_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(all_lanes, value, distance);
    value = value > other ? value : other;
  }
  return value;
}

// Adds the values of all threads of a block; thread 0 gets the sum. `shared` has one element per warp and is free again
// after the next barrier.
template <class V>
__device__ __forceinline__ V block_sum(V value, V* shared) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) value += shared[warp];
  return value;
}

__device__ __forceinline__ void set_or_add(float* to, double value, bool accumulate) {
  *to = (accumulate ? *to : 0.0f) + static_cast<float>(value);
}

// Adds `count` sums per channel over the threads of a tile (see tiles.h) that hold the same eight channels. The result
// is to[count][channels]. `shared` has count x 8 x tile_threads elements.
template <int count>
__device__ __forceinline__ void column_totals(const float (&sums)[count * 8], int channels, unsigned column_tile,
                                              float* to, float* shared) {
  const int columns = tile_columns(octets_of(channels)), rows = tile_threads / columns;
  const int thread = static_cast<int>(threadIdx.x);
  RINGTRAIN_UNROLL
  for (int k = 0; k < count * 8; ++k) shared[k * tile_threads + thread] = sums[k];
  __syncthreads();
  for (int i = thread; i < count * 8 * columns; i += tile_threads) {
    const int k = i / columns, column = i % columns;
    const int channel = (static_cast<int>(column_tile) * columns + column) * 8 + k % 8;
    if (channel >= channels) continue;
    const float* from = shared + k * tile_threads + column;
    float total = 0;
    for (int row = 0; row < rows; ++row) total += from[row * columns];
    to[static_cast<std::int64_t>(k / 8) * channels + channel] = total;
  }
}

}  // namespace ringtrain::cuda::RINGTRAIN_KERNEL_SPACE
