// Guesses which known word a user meant by a misspelt one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ringtrain {

// Returns the number of edits that turn `a` into `b`. An edit inserts, drops or replaces a letter, or swaps two
// neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns a hint such as "; did you mean 'sqrt'?" for an unknown word, or "" if no known word is near.
std::string nearest_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace ringtrain
