// Finds the column of names by the header of a table, and tells records from empty lines and comments.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

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

// Returns whether a record is an empty line, or a comment: fewer fields than `width` (0: not known), and a # first.
bool is_comment(const std::vector<std::string>& fields, std::size_t width);
bool is_blank(const std::vector<std::string>& fields);
inline bool is_blank_or_comment(const std::vector<std::string>& fields, std::size_t width) {
  return is_blank(fields) || is_comment(fields, width);
}

// Returns the number of fields that are not empty.
std::size_t count_not_empty(const std::vector<std::string>& fields);

// Returns the number of fields, without empty ones at the end that are beyond `width`.
std::size_t count_filled(const std::vector<std::string>& fields, std::size_t width);

}  // namespace ringtrain
