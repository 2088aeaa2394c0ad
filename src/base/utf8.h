// UTF-8: split into symbols (code points), check, cut, trim, change case.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ringtrain {

// The bytes of the first symbol of `text`: 1 to 4, or 0 when it is no valid UTF-8 (overlong forms and surrogates count
// as invalid). `text` must not be empty.
std::size_t symbol_length(std::string_view text);

// The code point of a valid symbol, and back.
std::uint32_t decode_symbol(std::string_view symbol);
std::string encode_symbol(std::uint32_t code_point);

// The byte offset of the first invalid byte, or npos.
std::size_t find_invalid_utf8(std::string_view text);

// The longest beginning of `text` that has at most `most_bytes` bytes and does not end inside a symbol.
std::string_view cut_to(std::string_view text, std::size_t most_bytes);

// `text` without the symbol at its end if that symbol lacks bytes.
std::string_view without_cut_symbol(std::string_view text);

// A text that was found, in quotes, for a message: one line of at most 60 bytes and "...".
std::string shown(std::string_view text);

// For a terminal or a log: control characters, which a damaged file may bring into a message, as \x1b. Line ends and
// tabs stay.
std::string printable(std::string text);

// Without white space (ASCII, no-break and ideographic spaces, byte-order marks) at both ends. Valid UTF-8 only.
std::string_view trim(std::string_view text);

// Unicode's simple mappings (glibc's C.UTF-8), symbol by symbol; valid UTF-8 only. Throws Error for a symbol beyond
// ASCII when this system has no UTF-8 locale.
std::string lower_case(std::string_view text);
std::string upper_case(std::string_view text);

// The text of an input file's first bytes without their byte-order mark; throws Error for UTF-16 and UTF-32.
void check_not_utf16(std::string_view start, const std::string& file_name);

}  // namespace ringtrain
