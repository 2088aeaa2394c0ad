// Reads JSON that other programs wrote or that a disk has damaged. nlohmann::json parses any depth, but copies and
// writes by recursion. Its get<T>() converts 1e300 to an integer without an error, which is undefined behaviour, and
// truncates values that do not fit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <istream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace ringtrain {

inline constexpr int deepest_json = 64;

// Returns the deepest level of brackets outside of strings. The text need not be valid JSON.
inline int json_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// Returns a discarded value (is_object() and similar functions return false) if the text is not JSON or is deeper than
// `deepest_json`.
template <class Json>
Json parse_json(std::string_view text) {
  if (json_depth(text) > deepest_json) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}
template <class Json>
Json parse_json(std::istream& in) {
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return parse_json<Json>(text);
}

// Returns nothing if the value is not a number or does not fit Integer. Fractions are cut off, as get<T>() does.
template <class Integer, class Json>
std::optional<Integer> integer_in(const Json& json) {
  static_assert(std::is_integral_v<Integer> && !std::is_same_v<Integer, bool>);
  if (json.is_number_unsigned()) {
    const auto value = json.template get<std::uint64_t>();
    return std::in_range<Integer>(value) ? std::optional(static_cast<Integer>(value)) : std::nullopt;
  }
  if (json.is_number_integer()) {
    const auto value = json.template get<std::int64_t>();
    return std::in_range<Integer>(value) ? std::optional(static_cast<Integer>(value)) : std::nullopt;
  }
  if (!json.is_number()) return std::nullopt;
  // Both bounds are powers of two, so they are exact as doubles. The upper bound is exclusive.
  const auto value = json.template get<double>();
  constexpr double low = static_cast<double>(std::numeric_limits<Integer>::min());
  constexpr double high = 2.0 * static_cast<double>(std::numeric_limits<Integer>::max() / 2 + 1);
  if (!(value >= low && value < high)) return std::nullopt;
  return static_cast<Integer>(value);
}

// Works as integer_in(), but throws an Error that contains the value.
template <class Integer, class Json>
Integer integer_from(const Json& json) {
  if (const auto value = integer_in<Integer>(json)) return *value;
  throw Error(cat(json.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60), " is not a whole number of ",
                  8 * sizeof(Integer), " bits"));
}

}  // namespace ringtrain
