// JSON values, and reading what other programs wrote or what a disk has damaged. nlohmann::json parses any depth, but
// copies and writes by recursion. Its get<T>() converts 1e300 to an integer without an error, which is undefined
// behaviour, and truncates values that do not fit.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace ringtrain {

using Json = nlohmann::ordered_json;  // objects keep the order in which their keys were added

inline constexpr int deepest_json = 64;

// Returns the deepest level of brackets outside of strings. The text need not be valid JSON.
int json_depth(std::string_view text);

// Returns a discarded value (is_object() and similar functions return false) if the text is not JSON or is deeper than
// `deepest_json`.
Json parse_json(std::string_view text);
Json parse_json(std::istream& in);

// Returns nothing if the value is not a number or does not fit Integer. Fractions are cut off, as get<T>() does.
template <class Integer>
std::optional<Integer> integer_in(const Json& json) {
  static_assert(std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>);
  if (json.is_number_unsigned()) {
    const auto value = json.get<std::uint64_t>();
    return std::in_range<Integer>(value) ? std::optional(static_cast<Integer>(value)) : std::nullopt;
  }
  if (json.is_number_integer()) {
    const auto value = json.get<std::int64_t>();
    return std::in_range<Integer>(value) ? std::optional(static_cast<Integer>(value)) : std::nullopt;
  }
  if (!json.is_number()) return std::nullopt;
  // Both bounds are powers of two, so they are exact as doubles. The upper bound is exclusive.
  const auto value = json.get<double>();
  constexpr double low = static_cast<double>(std::numeric_limits<Integer>::min());
  constexpr double high = 2.0 * static_cast<double>(std::numeric_limits<Integer>::max() / 2 + 1);
  if (!(value >= low && value < high)) return std::nullopt;
  return static_cast<Integer>(value);
}

// Returns the JSON as text, with line ends and this indentation, or in one line. Bytes that are not valid UTF-8, for
// example in a path on a command line, become U+FFFD.
std::string json_text(const Json& json, int indent = -1);

// Returns what the library says of an error, without the library's own name and number of it.
std::string said_by(const Json::exception& error);

// These return nothing if the value is not a number or not text.
std::optional<double> real_in(const Json& json);
std::optional<std::string> text_in(const Json& json);

// Returns the value of the key, or null if there is no such key or no object.
const Json& value_or_null(const Json& object, const char* key);

[[noreturn]] void refuse_integer(const Json& json, std::size_t bits);

// Works as integer_in(), but throws an Error that contains the value.
template <class Integer>
Integer integer_from(const Json& json) {
  if (const auto value = integer_in<Integer>(json)) return *value;
  refuse_integer(json, 8 * sizeof(Integer));
}

}  // namespace ringtrain
