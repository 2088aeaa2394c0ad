#include "study/quasi_random.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/random.h"

namespace ringtrain {
namespace {

constexpr int bits = 32;

// A primitive polynomial: its degree, its inner coefficients as bits, and the first direction numbers. The first
// dimension is van der Corput's sequence and needs no polynomial.
struct Polynomial {
  int degree;
  std::uint32_t inner;
  std::array<std::uint32_t, 5> first;
};
constexpr std::array<Polynomial, most_drawn_keys - 1> polynomials = {{{1, 0, {1}},
                                                                      {2, 1, {1, 3}},
                                                                      {3, 1, {1, 3, 1}},
                                                                      {3, 2, {1, 1, 1}},
                                                                      {4, 1, {1, 1, 3, 3}},
                                                                      {4, 4, {1, 3, 5, 13}},
                                                                      {5, 2, {1, 1, 5, 5, 17}},
                                                                      {5, 4, {1, 1, 5, 5, 5}},
                                                                      {5, 7, {1, 1, 7, 11, 19}}}};
constexpr std::array<std::uint64_t, most_drawn_keys> primes = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29};

using Directions = std::array<std::uint32_t, bits>;

Directions directions_of(std::size_t dimension) {
  Directions v{};
  if (dimension == 0) {
    for (int i = 0; i < bits; ++i) v[static_cast<std::size_t>(i)] = 1u << (bits - 1 - i);
    return v;
  }
  const Polynomial& p = polynomials.at(dimension - 1);
  const auto s = static_cast<std::size_t>(p.degree);
  for (std::size_t i = 0; i < s; ++i) v[i] = p.first[i] << (bits - 1 - static_cast<int>(i));
  for (std::size_t i = s; i < v.size(); ++i) {
    v[i] = v[i - s] ^ (v[i - s] >> s);
    for (std::size_t k = 1; k < s; ++k)
      if ((p.inner >> (s - 1 - k)) & 1u) v[i] ^= v[i - k];
  }
  return v;
}

}  // namespace

std::uint32_t sobol(std::uint32_t index, std::size_t dimension) {
  const Directions v = directions_of(dimension);
  std::uint32_t point = 0, gray = index ^ (index >> 1);
  for (std::size_t i = 0; gray != 0; ++i, gray >>= 1)
    if (gray & 1u) point ^= v[i];
  return point;
}

double halton(std::uint64_t index, std::size_t dimension) {
  const std::uint64_t base = primes.at(dimension);
  double result = 0, digit_value = 1;
  for (; index > 0; index /= base) {
    digit_value /= static_cast<double>(base);
    result += digit_value * static_cast<double>(index % base);
  }
  return result;
}

double drawn(Sequence sequence, std::uint64_t seed, std::uint32_t index, std::size_t dimension) {
  const std::uint64_t key = random_key(seed, RandomPurpose::sampling);
  if (sequence == Sequence::random) return random_uniform(key, std::uint64_t{index} * most_drawn_keys + dimension);
  const double shift = random_uniform(key, (std::uint64_t{1} << 40) + dimension);
  if (sequence == Sequence::sobol) {
    const auto moved = sobol(index, dimension) ^ static_cast<std::uint32_t>(std::ldexp(shift, bits));
    return std::ldexp(static_cast<double>(moved) + 0.5, -bits);
  }
  const double moved = halton(index, dimension) + shift;
  return std::min(std::max(moved - std::floor(moved), 0x1.0p-53), 1 - 0x1.0p-53);
}

}  // namespace ringtrain
