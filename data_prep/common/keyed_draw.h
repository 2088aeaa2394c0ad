// Draws a uniform number in (0, 1] from a key and a text. The numbers decide which samples are held out.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/random.h"

namespace ringtrain {

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
