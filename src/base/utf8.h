// Functions for UTF-8 text: split into symbols (code points), check, cut, trim and change case.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ringtrain {

// Returns the number of bytes of the first symbol of `text`, 1 to 4. Returns 0 if these bytes are not valid UTF-8
// (overlong forms and surrogates are invalid). `text` must not be empty.
std::size_t symbol_length(std::string_view text);

// Returns the number of symbols of a valid text.
std::size_t symbol_count(std::string_view text);

// Conversion between a valid symbol and its code point.
std::uint32_t decode_symbol(std::string_view symbol);
std::string encode_symbol(std::uint32_t code_point);

// Returns the byte offset of the first invalid byte, or npos.
std::size_t find_invalid_utf8(std::string_view text);

// Returns the longest prefix of `text` that has at most `most_bytes` bytes and does not end inside a symbol.
std::string_view cut_to(std::string_view text, std::size_t most_bytes);

// Returns `text` without its last symbol if bytes of that symbol are missing.
std::string_view without_cut_symbol(std::string_view text);

// Puts a text in quotes for a message. Control characters, such as line ends, become '?'. A text of more than 60 bytes
// is cut and ends with "...".
std::string shown(std::string_view text);

// Makes a text safe for a terminal or a log. Control characters, which may come from a damaged file, and bytes that are
// not UTF-8 become \x1b and the like. Line ends and tabs stay.
std::string printable(std::string_view text);

// Writes bytes that are not valid UTF-8 as \xe9 and the like. Different texts give different results: in a text that
// has such bytes, or holds "\x" itself, each backslash is doubled. Other text stays as it is.
std::string escape_invalid_utf8(std::string_view text);

// Removes white space (ASCII, no-break and ideographic spaces, byte-order marks) from both ends. The text must be valid
// UTF-8.
std::string_view trim(std::string_view text);

// Changes case symbol by symbol with Unicode's simple mappings (utf8proc's). The text must be valid UTF-8.
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);

// Unicode's normal form, with utf8proc. Many letters can be written in two ways that look the same: "é" is one symbol,
// or "e" and a combining accent. Returns the text in Unicode's composed form (NFC), in which each such letter has one
// way to be written. The text must be valid UTF-8. Text in this form, such as all ASCII text, stays as it is.
std::string composed(std::string_view text);

}  // namespace ringtrain
