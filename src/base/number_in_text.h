// Reads a number that is a whole text, and writes one with the shortest digits.
#pragma once

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>

namespace ringtrain {

// Sets `number` to the number that the text is, as std::from_chars reads it. Returns false if the text is anything
// else, such as a number with blanks or with a plus sign, or one that its type cannot hold; `number` may have changed.
template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc() && end == last;
}

// Returns the shortest digits that read back as the same number. Very small and very large numbers have an exponent.
inline std::string shortest(double value) {
  char text[64];
  const bool plain = value == 0 || (std::abs(value) >= 1e-5 && std::abs(value) < 1e15);
  const auto end = plain ? std::to_chars(text, text + sizeof text, value, std::chars_format::fixed)
                         : std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

}  // namespace ringtrain
