#include "base/hash.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace ringtrain {
namespace {

// The table for the reflected polynomial 0x82F63B78.
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? 0x82F63B78u : 0u);
    table[byte] = value;
  }
  return table;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc_by_instruction(std::span<const std::uint8_t> bytes,
                                                                   std::uint32_t crc) {
  std::uint64_t wide = crc;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<std::uint32_t>(wide);
  for (; i < bytes.size(); ++i) crc = _mm_crc32_u8(crc, bytes[i]);
  return crc;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(std::span<const std::uint8_t> bytes, std::uint32_t crc) {
  static constexpr std::array<std::uint32_t, 256> table = make_table();
  crc = ~crc;
  for (const std::uint8_t byte : bytes) crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFFu];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~crc_by_instruction(bytes, ~crc);
#endif
  return crc32c_portable(bytes, crc);
}

}  // namespace ringtrain
