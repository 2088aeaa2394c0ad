// Joins values into one string: cat("layer ", 3, ".weight"), and those of a range: joined(shape, " x ").
#pragma once

#include <charconv>
#include <concepts>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// int8_t and uint8_t are no numbers here, because operator<< prints them as characters.
template <class T>
concept PrintedNumber = std::floating_point<T> || std::same_as<T, bool> ||(std::integral<T> && sizeof(T) >= 2);

template <class T>
concept PrintedText = std::same_as<T, char> || std::convertible_to<const T&, std::string_view>;

template <class T>
requires PrintedNumber<T> || PrintedText<T>
void append_printed(std::string& text, const T& part) {
  if constexpr (std::same_as<T, char>) {
    text += part;
  } else if constexpr (PrintedText<T>) {
    text += std::string_view(part);
  } else {
    char digits[32];
    std::to_chars_result end{};
    if constexpr (std::floating_point<T>)
      end = std::to_chars(digits, std::end(digits), part, std::chars_format::general, 6);
    else
      end = std::to_chars(digits, std::end(digits), +part);
    text.append(digits, end.ptr);
  }
}

// Returns what operator<< prints for the arguments, one after the other. Text and numbers are joined without a stream.
// A stream takes eight times as long, and the programs of a GPU are built from many thousands of such strings.
template <class... Parts>
std::string cat(const Parts&... parts) {
  if constexpr (((PrintedNumber<Parts> || PrintedText<Parts>)&&...)) {
    std::string text;
    (append_printed(text, parts), ...);
    return text;
  } else {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
  }
}

// Returns the values of a range, one after the other: "a, b". `of` returns what is printed of a value.
template <class Range = std::vector<std::string>, class Of = std::identity>
std::string joined(const Range& values, std::string_view between = ", ", const Of& of = {}) {
  std::string text;
  std::string_view before;
  for (const auto& value : values) {
    text += before;
    append_printed(text, std::invoke(of, value));
    before = between;
  }
  return text;
}

}  // namespace ringtrain
