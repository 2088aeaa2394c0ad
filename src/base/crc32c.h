// CRC-32C (Castagnoli): the checksum of data sets and checkpoints.
#pragma once

#include <cstdint>
#include <span>

namespace ringtrain {

// To continue an earlier call, pass its result as `crc`.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t crc = 0);
std::uint32_t crc32c_portable(std::span<const std::uint8_t> bytes, std::uint32_t crc = 0);  // works without SSE 4.2

}  // namespace ringtrain
