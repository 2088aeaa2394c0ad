// The hash of Fowler, Noll and Vo, 64 bits, variant 1a. It names trials and contents of caches, and it makes the random
// key of a parameter's initial values from the parameter's name. Another hash would therefore change initial weights
// and names. This hash does not protect against attackers.
#pragma once

#include <cstdint>
#include <string_view>

namespace ringtrain {

inline std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace ringtrain
