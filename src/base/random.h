// Random numbers from counters. A value is a pure function of a key and a counter. So it does not depend on the rank,
// the thread or the order of calls, and there is no generator state to save.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/host_device.h"

namespace ringtrain {

struct Random4 {
  std::uint32_t v[4];
};

// The generator Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
RINGTRAIN_HD Random4 philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low), c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high), c3 = static_cast<std::uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The use of a random number. Each use has its own stream for the same seed.
enum class RandomPurpose : std::uint32_t {
  order = 1,
  initial_weights = 2,
  dropout = 3,
  phase = 4,
  sampling = 5,
  shards = 6,
  augmentation = 7,
  share = 8
};

RINGTRAIN_HD std::uint64_t random_key(std::uint64_t seed, RandomPurpose purpose) {
  const Random4 r = philox(seed, static_cast<std::uint64_t>(purpose), 0x72696e67747261ull);
  return (std::uint64_t{r.v[0]} << 32) | r.v[1];
}

// Uniform in (0, 1], with 53 random bits. The value 1 has a probability of 2^-53.
inline double random_uniform(std::uint64_t key, std::uint64_t index) {
  const Random4 r = philox(key, index, 0);
  const std::uint64_t bits = (std::uint64_t{r.v[0]} << 21) ^ (r.v[1] >> 11);
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Standard normal, after Box and Muller 1958.
inline double random_normal(std::uint64_t key, std::uint64_t index) {
  const Random4 r = philox(key, index, 1);
  const double u = (static_cast<double>((std::uint64_t{r.v[0]} << 21) ^ (r.v[1] >> 11)) + 0.5) * 0x1.0p-53;
  const double v = (static_cast<double>((std::uint64_t{r.v[2]} << 21) ^ (r.v[3] >> 11)) + 0.5) * 0x1.0p-53;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
}

// Truncated normal: values beyond two standard deviations are drawn again. The result is scaled to the variance 1, so
// it lies within +-2.2737. `index` must be less than 2^48.
inline double random_truncated_normal(std::uint64_t key, std::uint64_t index) {
  constexpr double deviation = 0.87962566103423978;  // standard deviation of a standard normal truncated at +-2
  for (std::uint64_t attempt = 0;; ++attempt) {
    const double normal = random_normal(key, index + (attempt << 48));
    if (std::abs(normal) <= 2) return normal / deviation;
  }
}

// Uniform in (0, 1], from a key and a text. The converters of data_prep/ draw with it which samples are held out.
inline double keyed_draw(std::uint64_t key, std::string_view text) {
  std::uint64_t state = key;
  for (std::size_t at = 0; at < text.size(); at += 8) {
    std::uint64_t word = 0;
    for (std::size_t b = at; b < text.size() && b < at + 8; ++b) {
      word = (word << 8) | static_cast<unsigned char>(text[b]);
    }
    const Random4 r = philox(state, word, text.size());
    state = (std::uint64_t{r.v[0]} << 32) | r.v[1];
  }
  return random_uniform(state, 0);
}

}  // namespace ringtrain
