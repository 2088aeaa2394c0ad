#include "data_prep/text/plain_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr std::uint32_t zero_width_non_joiner = 0x200C, zero_width_joiner = 0x200D;

// Joiners shape letters of Arabic and Indic scripts, and emoji. Between other letters they do nothing.
bool is_shaped(std::uint32_t code) {
  return code >= 0x600 && !(code >= 0x1E00 && code < 0x2190);
}

bool is_unusual_space(std::uint32_t code) {
  return code >= 0x80 && utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_ZS;
}

std::vector<std::uint32_t> symbols_of(std::string_view text) {
  std::vector<std::uint32_t> symbols;
  while (!text.empty()) {
    const std::size_t length = symbol_length(text);
    symbols.push_back(decode_symbol(text.substr(0, length)));
    text.remove_prefix(length);
  }
  return symbols;
}

std::string without_invisible(std::string_view text) {
  const std::vector<std::uint32_t> symbols = symbols_of(text);
  std::string result;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const bool joiner = symbols[i] == zero_width_non_joiner || symbols[i] == zero_width_joiner;
    const bool shapes = i > 0 && i + 1 < symbols.size() && is_shaped(symbols[i - 1]) && is_shaped(symbols[i + 1]);
    if (!is_invisible(symbols[i]) && (!joiner || shapes)) result += encode_symbol(symbols[i]);
  }
  return result;
}

std::string with_plain_spaces(std::string_view text) {
  std::string result;
  for (const std::uint32_t code : symbols_of(text)) result += is_unusual_space(code) ? " " : encode_symbol(code);
  return result;
}

}  // namespace

bool is_invisible(std::uint32_t code) {
  return code == 0xAD || code == 0x34F || code == 0x61C || code == 0x180E || code == 0x200B || code == 0x200E ||
         code == 0x200F || (code >= 0x202A && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
}

bool is_control(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029;
}

std::string plain_form(std::string_view text, FormChanges& changes) {
  changes = {};
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    const std::string_view trimmed = trim(text);
    changes.trimmed = trimmed != text;
    return std::string(trimmed);
  }
  const std::string visible = without_invisible(text);
  const std::string_view trimmed = trim(visible);
  const std::string spaced = with_plain_spaces(trimmed);
  const std::string result = composed(spaced);
  changes = {.composed = result != spaced,
             .invisible = visible != text,
             .spaces = spaced != trimmed,
             .trimmed = trimmed != visible};
  return result;
}

}  // namespace ringtrain
