#include "base/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "base/error.h"

namespace ringtrain {
namespace {

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

bool is_continuation(std::string_view text, std::size_t i) {
  return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0u) == 0x80u;
}

bool is_white_space(std::uint32_t code) {
  return code == ' ' || (code >= '\t' && code <= '\r') || code == 0x85 || code == 0xA0 || code == 0x3000 ||
         (code >= 0x2000 && code <= 0x200B) || code == 0x202F || code == 0xFEFF;
}

std::string escaped(char byte) {
  constexpr char digits[] = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  return {'\\', 'x', digits[value >> 4], digits[value & 15]};
}

std::string map_symbols(std::string_view text, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = symbol_length(text.substr(i));
    const std::uint32_t code = decode_symbol(text.substr(i, length));
    result += encode_symbol(static_cast<std::uint32_t>(map(static_cast<utf8proc_int32_t>(code))));
    i += length;
  }
  return result;
}

}  // namespace

std::size_t symbol_count(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) count += is_continuation(text, i) ? 0 : 1;
  return count;
}

std::size_t symbol_length(std::string_view text) {
  if (is_ascii(text[0])) return 1;
  utf8proc_int32_t code = 0;
  const utf8proc_ssize_t length = utf8proc_iterate(bytes_of(text), std::ssize(text), &code);
  return length > 0 ? static_cast<std::size_t>(length) : 0;
}

std::uint32_t decode_symbol(std::string_view symbol) {
  if (symbol.size() == 1) return static_cast<unsigned char>(symbol[0]);
  utf8proc_int32_t code = 0;
  utf8proc_iterate(bytes_of(symbol), std::ssize(symbol), &code);
  return static_cast<std::uint32_t>(code);
}

std::string encode_symbol(std::uint32_t code) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const utf8proc_ssize_t length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  return {bytes.begin(), bytes.begin() + length};
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = symbol_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string_view trim(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = symbol_length(text);
    if (!is_white_space(decode_symbol(text.substr(0, length)))) break;
    text.remove_prefix(length);
  }
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    while (is_continuation(text, begin)) --begin;
    if (!is_white_space(decode_symbol(text.substr(begin)))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::string_view without_cut_symbol(std::string_view text) {
  // A symbol has at most three bytes after its first byte.
  std::size_t tail = 0;
  while (tail < 3 && tail < text.size() && is_continuation(text, text.size() - 1 - tail)) ++tail;
  if (tail == text.size()) return text;
  const std::size_t begin = text.size() - 1 - tail;
  const auto lead = static_cast<unsigned char>(text[begin]);
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  return length > tail + 1 ? text.substr(0, begin) : text;
}

std::string_view cut_to(std::string_view text, std::size_t most_bytes) {
  return text.size() <= most_bytes ? text : without_cut_symbol(text.substr(0, most_bytes));
}

std::string shown(std::string_view text) {
  const std::string_view beginning = cut_to(text, 60);
  std::string out;
  for (const char c : beginning) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
  return "'" + out + (beginning.size() < text.size() ? "..." : "") + "'";
}

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const bool is_control = (byte < 0x20 && text[0] != '\n' && text[0] != '\t') || byte == 0x7f;
    const std::size_t length = is_control ? 0 : symbol_length(text);
    if (length == 0)
      result += escaped(text[0]);
    else
      result += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string escape_invalid_utf8(std::string_view text) {
  if (find_invalid_utf8(text) == std::string_view::npos && text.find("\\x") == std::string_view::npos)
    return std::string(text);
  std::string result;
  while (!text.empty()) {
    const std::size_t length = symbol_length(text);
    result += length == 0 ? escaped(text[0]) : std::string(text.substr(0, length));
    if (text[0] == '\\') result += '\\';
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string lower_case(std::string_view text) {
  return map_symbols(text, utf8proc_tolower);
}

std::string upper_case(std::string_view text) {
  return map_symbols(text, utf8proc_toupper);
}

namespace {

constexpr std::uint32_t first_combining = 0x300;  // symbols below it change only before a combining one

// Returns whether no symbol of the text may change: U+0300 and all later symbols begin with the byte 0xCC or more.
bool is_surely_composed(std::string_view text) {
  static_assert(first_combining == 0x300);
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

void append_composed(std::string& result, std::string_view text) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(bytes_of(text), std::ssize(text), &bytes,
                                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  if (length < 0) throw Error(cat("Unicode's composed form of ", shown(text), ": ", utf8proc_errmsg(length)));
  result.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

}  // namespace

std::string composed(std::string_view text) {
  if (is_surely_composed(text)) return std::string(text);
  std::string result;
  result.reserve(text.size());
  // Nothing before an ASCII symbol depends on it. Each piece is such a symbol and the other symbols after it.
  while (!text.empty()) {
    const auto other = std::find_if_not(text.begin(), text.end(), is_ascii);
    const auto plain = other == text.begin() || other == text.end() ? other : other - 1;
    result.append(text.begin(), plain);
    if (other == text.end()) break;
    const auto end = std::find_if(other, text.end(), is_ascii);
    const std::string_view piece(plain, end);
    if (is_surely_composed(piece)) {
      result += piece;
    } else {
      append_composed(result, piece);
    }
    text = std::string_view(end, text.end());
  }
  return result;
}

}  // namespace ringtrain
