// Checksums and hashes of bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace ringtrain {

// CRC-32C (Castagnoli): the checksum of data sets and checkpoints.
// To continue an earlier call, pass its result as `crc`.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t crc = 0);
std::uint32_t crc32c_portable(std::span<const std::uint8_t> bytes, std::uint32_t crc = 0);  // works without SSE 4.2

// The hash of Fowler, Noll and Vo, 64 bits, variant 1a. It names trials and contents of caches, and it makes the random
// key of a parameter's initial values from the parameter's name. Another hash would therefore change initial weights
// and names. This hash does not protect against attackers.
inline std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace ringtrain
