#include "base/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr std::uint32_t first_combining = 0x300;  // symbols below it change only before a combining one

bool is_ascii(char c) {
  return static_cast<unsigned char>(c) < 0x80;
}

// Returns whether no symbol of the text may change: U+0300 and all later symbols begin with the byte 0xCC or more.
bool is_surely_composed(std::string_view text) {
  static_assert(first_combining == 0x300);
  return std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

void append_composed(std::string& result, std::string_view text) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &bytes, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
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
