// Finds the separator of a table from its first lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data_prep/tables/csv.h"

namespace ringtrain {

// Returns the separator that a word of the command line means: a character, or comma, semicolon, tab, pipe, space, none
// ('\n'). Throws Error for other words.
char separator_of(const std::string& word);
std::string separator_name(char separator);  // for messages

// If the text is the line with which Excel names its separator (sep=;), stores the separator and returns true.
bool is_separator_line(const std::string& line, char& separator);

// What is known of a table before it is read.
struct TableQuestion {
  std::string column;  // as in choose_column()
  bool has_header = true;
  bool quotes = true;
  bool tabs_first = false;       // the file's name ends in .tsv or .tab
  bool header_is_known = false;  // no line is taken for a title
};

// Reads ahead in `lines`. A separator fits if the records have as many fields as the first one, and if the column that
// is looked for exists and holds no other separator. Throws Error that asks for --separator if several ones fit.
char guess_separator(LineReader& lines, const TableQuestion& question);

// Returns the line that seems to be the header of a table whose first line is a title: it has one field, and the first
// ten lines have records of several fields. Returns 0 if the first line is no title, or if it has the column's name.
// Reads ahead in `lines`.
std::int64_t header_below_title(LineReader& lines, char separator, const TableQuestion& question);

[[noreturn]] void refuse_table(const std::string& file_name, char separator);

// Throws Error if lines that should each be a name look like the records of a table. Reads ahead in `lines`.
void check_is_no_table(LineReader& lines);

}  // namespace ringtrain
