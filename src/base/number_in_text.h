// Reads a number that is a whole text.
#pragma once

#include <charconv>
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

}  // namespace ringtrain
