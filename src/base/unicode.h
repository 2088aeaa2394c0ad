// Unicode's normal form, with utf8proc. Many letters can be written in two ways that look the same: "é" is one symbol,
// or "e" and a combining accent.
#pragma once

#include <string>
#include <string_view>

namespace ringtrain {

// Returns the text in Unicode's composed form (NFC), in which each such letter has one way to be written. The text must
// be valid UTF-8. Text in this form, such as all ASCII text, stays as it is.
std::string composed(std::string_view text);

}  // namespace ringtrain
