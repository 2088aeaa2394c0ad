// Finds the separator of a table from its first lines.
#pragma once

#include <cstddef>
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
  bool tabs_first = false;  // the file's name ends in .tsv or .tab
};

// Reads ahead in `lines`. A separator fits if the records have as many fields as the first one, and if the column that
// is looked for exists and holds no other separator. Throws Error that asks for --separator if several ones fit.
char guess_separator(LineReader& lines, const TableQuestion& question);

// Throws Error if lines that should each be a name look like the records of a table. Reads ahead in `lines`.
void check_is_no_table(LineReader& lines);

}  // namespace ringtrain
