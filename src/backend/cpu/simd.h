// A vector register of channels, for files that are compiled once per instruction set. Activations are stored in blocks
// of `lanes` channels, so every loop body handles a few whole registers. All functions are private to the file that
// includes this one, because the linker must never mix two instruction sets.
#pragma once

#include <cstdint>

#include "nn/math.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ringtrain::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#else
constexpr int lanes = 8;
#endif

typedef float Floats __attribute__((vector_size(lanes * 4), may_alias));
typedef std::int32_t Ints __attribute__((vector_size(lanes * 4), may_alias));
typedef std::uint32_t Words __attribute__((vector_size(lanes * 4), may_alias));
typedef std::uint16_t Halves __attribute__((vector_size(lanes * 2), may_alias));
typedef std::uint8_t Bytes __attribute__((vector_size(lanes), may_alias));
typedef double Doubles __attribute__((vector_size(lanes * 8), may_alias));

#define RINGTRAIN_INLINE inline __attribute__((always_inline))

template <class Vector, class Element>
RINGTRAIN_INLINE Vector load_as(const Element* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
template <class Vector, class Element>
RINGTRAIN_INLINE void store_as(Element* to, Vector v) {
  __builtin_memcpy(to, &v, sizeof(v));
}

RINGTRAIN_INLINE Floats broadcast(float x) {
  return Floats{} + x;
}
RINGTRAIN_INLINE Floats load(const float* from) {
  return load_as<Floats>(from);
}
RINGTRAIN_INLINE Floats load(const BFloat16* from) {
  const Words wide = __builtin_convertvector(load_as<Halves>(from), Words) << 16;
  return __builtin_bit_cast(Floats, wide);
}
RINGTRAIN_INLINE void store(float* to, Floats v) {
  store_as(to, v);
}
// Rounds to nearest even; NaN stays NaN.
RINGTRAIN_INLINE void store(BFloat16* to, Floats v) {
#if defined(__AVX512BF16__)
  store_as(to, _mm512_cvtneps_pbh(__builtin_bit_cast(__m512, v)));
#else
  const Words bits = __builtin_bit_cast(Words, v);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  store_as(to, __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, Halves));
#endif
}

RINGTRAIN_INLINE Doubles widen(Floats v) {
  return __builtin_convertvector(v, Doubles);
}

// NaN passes, as in PyTorch, so that a diverged run is visible.
RINGTRAIN_INLINE Floats rectify(Floats v) {
  return v < 0.0f ? Floats{} : v;
}

// Stores one bit per channel: v > 0. This takes lanes / 8 bytes per pixel.
RINGTRAIN_INLINE void store_positive(std::uint8_t* bits, Floats v) {
#if defined(__AVX512F__)
  const std::uint16_t m =
      static_cast<std::uint16_t>(_mm512_cmp_ps_mask(__builtin_bit_cast(__m512, v), _mm512_setzero_ps(), _CMP_GT_OQ));
  store_as(bits, m);
#elif defined(__AVX2__)
  *bits = static_cast<std::uint8_t>(
      _mm256_movemask_ps(_mm256_cmp_ps(__builtin_bit_cast(__m256, v), _mm256_setzero_ps(), _CMP_GT_OQ)));
#else
  unsigned m = 0;
  for (int l = 0; l < lanes; ++l) m |= (v[l] > 0 ? 1u : 0u) << l;
  *bits = static_cast<std::uint8_t>(m);
#endif
}
// Returns v where the bit is set, otherwise 0.
RINGTRAIN_INLINE Floats keep(const std::uint8_t* bits, Floats v) {
#if defined(__AVX512F__)
  const auto m = load_as<std::uint16_t>(bits);
  return __builtin_bit_cast(Floats, _mm512_maskz_mov_ps(m, __builtin_bit_cast(__m512, v)));
#else
  Words place{};
  for (int l = 0; l < lanes; ++l) place[l] = 1u << l;
  return (place & *bits) != 0u ? v : Floats{};
#endif
}
RINGTRAIN_INLINE Floats keep_positive(Floats of, Floats v) {
  return of > 0.0f ? v : Floats{};
}

}  // namespace
}  // namespace ringtrain::cpu
