// Counts of units that cover a value. Values are not negative, and units are at least 1.
#pragma once

#include <concepts>
#include <type_traits>

namespace ringtrain {

// Returns the number of units: 3 for 7 and units of 3.
template <std::integral Integer>
constexpr Integer divide_up(Integer value, std::type_identity_t<Integer> unit) {
  return (value + unit - 1) / unit;
}

// Returns the value of these units: 9 for 7 and units of 3.
template <std::integral Integer>
constexpr Integer round_up(Integer value, std::type_identity_t<Integer> unit) {
  return divide_up(value, unit) * unit;
}

}  // namespace ringtrain
