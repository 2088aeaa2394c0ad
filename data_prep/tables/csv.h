// Reads the records of tables whose fields are separated by commas, semicolons, tabs or another character (RFC 4180).
//
// Libraries such as libcsv read records, too. They name no lines in errors, and cannot tell quotes that are letters
// from quotes around a field. Guessing the separator needs this reader for each candidate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data_prep/tables/lines.h"

namespace ringtrain {

struct CsvFormat {
  char separator = ',';  // '\n': none, so that each line is one field
  bool quotes = true;    // false: quotation marks are letters
};

inline constexpr std::size_t longest_table_line = std::size_t{64} << 20;  // bytes; the limit of a record, too

// A quoted field may hold separators, line ends and doubled quotes. Spaces between a separator and a quotation mark are
// left out. In a table with tabs, a quotation mark that is not closed in its line is a letter, unless the lines up to
// the closing one make up exactly one record.
class CsvReader {
 public:
  CsvReader(LineReader& lines, CsvFormat format) : lines_(lines), format_(format) {}
  // Returns false at the end. An empty line gives one empty field. Throws Error that names the line if a quoted field
  // never ends, or if something stands between its end and the next separator.
  bool next(std::vector<std::string>& fields);
  std::int64_t line() const { return record_line_; }                 // first line of the last record, counted from 1
  std::int64_t inner_line_ends() const { return inner_line_ends_; }  // the line ends in quoted fields, so far

 private:
  void add_line(std::string_view line, std::vector<std::string>& fields);
  std::size_t opening_quote(std::string_view line, std::size_t at) const;
  bool is_around_field(std::string_view after_quote, std::size_t fields_before);

  LineReader& lines_;
  CsvFormat format_;
  std::size_t width_ = 0;  // fields of the first record; 0: it is not read yet
  std::int64_t record_line_ = 1, inner_line_ends_ = 0;
  bool quoted_ = false;  // the record goes on in the next line
};

}  // namespace ringtrain
