// One way to write each name. Two names that look the same must be the same bytes, or the same name could be in both
// splits, and one letter could become two symbols.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ringtrain {

// What plain_form() changed.
struct FormChanges {
  bool composed = false;   // letters to Unicode's composed form (NFC)
  bool invisible = false;  // soft hyphens, zero-width spaces, marks of direction and byte-order marks were removed
  bool spaces = false;     // no-break and other wide or narrow spaces became plain ones
  bool trimmed = false;    // white space at the ends was removed
};

// Returns the text in its plain form, without white space at its ends. The text must be valid UTF-8.
std::string plain_form(std::string_view text, FormChanges& changes);

// Returns whether the symbol cannot be seen, and does not change how its neighbours look.
bool is_invisible(std::uint32_t code);

// Returns whether the symbol is a control character (of ASCII or of Latin-1) or a separator of lines.
bool is_control(std::uint32_t code);

}  // namespace ringtrain
