#include "study/vary.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/random.h"
#include "base/table.h"
#include "base/text.h"

namespace ringtrain {
namespace {

constexpr int digits = 4;  // significant digits of drawn numbers: enough to differ, and few enough to type

double rounded(double value) {
  read_number(with_digits(value, digits), value);
  return value;
}

std::string text_of(const NumberRange& range, double value) {
  if (range.integer) {
    const auto step = static_cast<double>(range.multiple_of);
    const double low = std::ceil(range.low / step), high = std::floor(range.high / step);
    return std::to_string(static_cast<std::int64_t>(std::clamp(value, low, high) * step));
  }
  return shortest(std::clamp(rounded(value), range.low, range.high));
}

}  // namespace

bool is_integer(const Field& field) {
  return has_type<std::int64_t>(field) || has_type<std::uint64_t>(field);
}

bool is_number(const Field& field) {
  return is_integer(field) || has_type<double>(field);
}

std::string value_at(const NumberRange& range, double fraction) {
  double low = range.low, high = range.high;
  if (range.integer) {
    // Fractions of the range from m to m + 1 give the multiple m, so every multiple gets the same share.
    low = std::ceil(low / static_cast<double>(range.multiple_of));
    high = std::floor(high / static_cast<double>(range.multiple_of)) + 1;
  }
  const double value = range.logarithmic ? low * std::pow(high / low, fraction) : low + (high - low) * fraction;
  return text_of(range, range.integer ? std::floor(value) : value);
}

std::vector<std::string> grid_values(const NumberRange& range, std::int64_t points) {
  std::vector<std::string> values;
  for (std::int64_t i = 0; i < points; ++i) {
    const double fraction = points == 1 ? 0 : static_cast<double>(i) / static_cast<double>(points - 1);
    const double value = range.logarithmic ? range.low * std::pow(range.high / range.low, fraction)
                                           : range.low + (range.high - range.low) * fraction;
    const std::string text =
        text_of(range, range.integer ? std::round(value / static_cast<double>(range.multiple_of)) : value);
    if (values.empty() || values.back() != text) values.push_back(text);
  }
  return values;
}

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

std::vector<Setting> drawn_settings(const Draws& draws, std::uint64_t seed, std::uint32_t index) {
  std::vector<Setting> settings;
  for (std::size_t k = 0; k < draws.keys.size(); ++k)
    settings.push_back(
        {draws.keys[k].key, value_at(draws.keys[k].range, drawn(draws.sequence, seed, index, k)), draws.keys[k].place});
  return settings;
}

}  // namespace ringtrain
