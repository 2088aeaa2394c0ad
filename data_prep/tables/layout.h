// Finds out from the first lines of a table how it is laid out: its separator, the line of its header, and the column
// of names.
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

// Finds the column of names by the header of a table, and tells records from empty lines and comments.

// The columns that may be the one that is looked for, and how well their headers match.
struct ColumnMatch {
  std::vector<std::size_t> columns;
  int quality = 0;  // 2: the name itself, or its number; 1: a header that contains "name"; 0: no column
};
// `asked` is the name of a column, or its number from 1 if no column has that name. If it is empty, the column is the
// one called "name", or the only one whose header contains "name". Case, Unicode's forms, invisible characters, quotes
// and white space around a header make no difference. Without a header, `asked` is a number, or empty for the only one.
ColumnMatch match_column(const std::vector<std::string>& first_record, const std::string& asked, bool has_header);

// Returns the column that match_column() found. Throws Error that lists the columns if it is not exactly one.
std::size_t choose_column(const std::vector<std::string>& first_record, const std::string& asked,
                          const std::string& file_name, bool has_header = true);

// Returns whether a header has the name that match_column() looks for. A number is no name.
bool is_column_name(const std::string& header, const std::string& asked);

// Returns whether a record is an empty line.
bool is_blank(const std::vector<std::string>& fields);
// Returns whether a record is an empty line, or a comment: fewer fields than `width` (0: not known), and a # first.
bool is_blank_or_comment(const std::vector<std::string>& fields, std::size_t width);

// Returns the number of fields, without empty ones at the end that are beyond `width`.
std::size_t count_filled(const std::vector<std::string>& fields, std::size_t width);

}  // namespace ringtrain
