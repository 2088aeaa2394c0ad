#include "tests/fuzz/repair.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace ringtrain::fuzz {
namespace {

// Follows the PNG specification, section 5.5, bit by bit, because the chunks are short.
std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

std::uint32_t big_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char c : bytes.substr(0, 4)) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

// Returns an octal field of a header, or 0 if the field is not a number.
std::uint64_t octal(std::string_view field) {
  std::uint64_t value = 0;
  for (const char c : field) {
    if (c < '0' || c > '7') break;
    value = value * 8 + static_cast<std::uint64_t>(c - '0');
  }
  return value;
}

}  // namespace

std::string repair_png(std::string_view input) {
  std::string result(input);
  if (!input.starts_with("\x89PNG\r\n\x1a\n")) return result;
  constexpr std::size_t around = 12;  // bytes of length, kind and CRC
  for (std::size_t at = 8; at + around <= input.size();) {
    const std::size_t length = big_endian(input.substr(at));
    if (length > input.size() - at - around) break;
    const std::uint32_t crc = crc32(input.substr(at + 4, 4 + length));
    for (std::size_t i = 0; i < 4; ++i) result[at + 8 + length + i] = static_cast<char>(crc >> (24 - 8 * i));
    at += around + length;
  }
  return result;
}

std::string repair_tar(std::string_view input) {
  constexpr std::size_t block = 512, sum_at = 148, sum_bytes = 8, size_at = 124, size_bytes = 12, type_at = 156;
  std::string result(input);
  for (std::size_t at = 0; at + block <= result.size();) {
    if (std::all_of(result.begin() + static_cast<std::ptrdiff_t>(at),
                    result.begin() + static_cast<std::ptrdiff_t>(at + block), [](char c) { return c == '\0'; }))
      break;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < block; ++i)
      sum += i >= sum_at && i < sum_at + sum_bytes ? ' ' : static_cast<unsigned char>(result[at + i]);
    char digits[sum_bytes + 1];
    std::snprintf(digits, sizeof digits, "%06llo", static_cast<unsigned long long>(sum));
    result.replace(at + sum_at, sum_bytes, std::string(digits) + std::string("\0 ", 2));
    const std::uint64_t size = octal(std::string_view(result).substr(at + size_at, size_bytes));
    const std::size_t content = at + block;
    if (size > result.size() - content) break;
    if (result[at + type_at] == 'x') {
      // A record is "length key=value\n". A length that needs another number of digits is left as it is.
      for (std::size_t record = content; record < content + size;) {
        const std::size_t end = result.find('\n', record), blank = result.find(' ', record);
        if (end >= content + size || blank > end) break;
        const std::string length = std::to_string(end + 1 - record);
        if (length.size() == blank - record) result.replace(record, length.size(), length);
        record = end + 1;
      }
    }
    at = content + (size + block - 1) / block * block;
  }
  return result;
}

}  // namespace ringtrain::fuzz
