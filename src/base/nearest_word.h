// Words that were probably meant.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ringtrain {

// Letters to insert, drop or replace, or neighbours to swap, that make `b` of `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

// "; did you mean 'sqrt'?" for an unknown word, "" when no known word is near.
std::string nearest_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace ringtrain
