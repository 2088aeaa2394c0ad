// Refuses files that are no UTF-8 text: other encodings of Unicode, and binary and compressed files.
#pragma once

#include <string>
#include <string_view>

namespace ringtrain {

// `start` is the first bytes of a file, or all of it. Throws Error that names what the file is and how to convert it,
// if it is UTF-16 or UTF-32 text (with or without a byte-order mark), compressed, a spreadsheet, or another known
// binary format.
void check_is_utf8_text(std::string_view start, const std::string& file_name);

// Returns the command that converts a file of this encoding to UTF-8.
std::string iconv_command(const std::string& encoding, const std::string& file_name);

inline constexpr const char* standard_input_name = "standard input";

}  // namespace ringtrain
