// Refuses files that are no UTF-8 text: other encodings of Unicode, and binary and compressed files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// `start` is the first bytes of a file, or all of it. Throws Error that names what the file is and how to convert it,
// if it is UTF-16 or UTF-32 text (with or without a byte-order mark), compressed, a spreadsheet, or another known
// binary format. `rerun` is as in iconv_command().
void check_is_utf8_text(std::string_view start, const std::string& file_name, const std::vector<std::string>& rerun);

// Returns the command that converts a file of this encoding to UTF-8, and then reads the new file. `rerun` are the
// words that read it, without its name. The new file keeps the ending, which says whether it is a table. UTF-16 with a
// name of another ending and with tabs (Excel's "Unicode text") becomes a .tsv file.
std::string iconv_command(const std::string& encoding, const std::string& file_name,
                          const std::vector<std::string>& rerun, bool has_tabs = false);

// Returns the encoding in which the bytes beyond ASCII of a European text are letters: WINDOWS-1252, CP850 (old DOS) or
// MACINTOSH (old Macs).
std::string likely_encoding(std::string_view text);

inline constexpr const char* standard_input_name = "standard input";

}  // namespace ringtrain
