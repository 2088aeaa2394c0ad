// The encoding of text files, and one way to write each text in UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// Refuses files that are no UTF-8 text: other encodings of Unicode, and binary and compressed files.

// `start` is the first bytes of a file, or all of it. Throws Error that names what the file is and how to convert it,
// if it is UTF-16 or UTF-32 text (with or without a byte-order mark), compressed, a spreadsheet, or another known
// binary format. `rerun` is as in iconv_command().
void check_is_utf8_text(std::string_view start, const std::string& file_name, const std::vector<std::string>& rerun);

// Throws Error that names the format if the text begins as HTML, XML, JSON or a vCard: its lines are no names.
void check_is_no_markup(std::string_view start, const std::string& file_name);

// Returns the command that converts a file of this encoding to UTF-8, and then reads the new file. `rerun` are the
// words that read it, without its name; if there are none, the command only converts. The new file keeps the ending,
// which says whether it is a table. UTF-16 with a name of another ending and with tabs (Excel's "Unicode text") becomes
// a .tsv file.
std::string iconv_command(const std::string& encoding, const std::string& file_name,
                          const std::vector<std::string>& rerun, bool has_tabs = false);

// Returns the encoding in which the bytes beyond ASCII of a European text are letters: WINDOWS-1252, CP850 (old DOS) or
// MACINTOSH (old Macs).
std::string likely_encoding(std::string_view text);

inline constexpr const char* standard_input_name = "standard input";

// One way to write each name. Two names that look the same must be the same bytes, or the same name could be in both
// splits, and one letter could become two symbols.

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
