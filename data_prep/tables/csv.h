// Reads the records of tables whose fields are separated by commas, semicolons, tabs or another character (RFC 4180).
//
// Libraries such as libcsv read records, too. They name no lines in errors, and cannot tell quotes that are letters
// from quotes around a field. Guessing the separator needs this reader for each candidate.
#pragma once

#include <cstdint>
#include <deque>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// Reads the lines of a text of any size. Lines end as on Linux (LF), Windows (CR LF) or old Macs (CR), also mixed.

// A byte-order mark at the beginning, and the end-of-file mark of DOS (Ctrl-Z) at the end, belong to no line.
class LineReader {
 public:
  // Longer lines are cut after `longest` bytes, between two symbols, so that a file without line ends cannot fill the
  // memory. Throws Error if the file is no UTF-8 text (data_prep/text/encoding.h, also for `rerun`) or cannot be read.
  LineReader(std::istream& in, std::string file_name, std::size_t longest, std::vector<std::string> rerun = {});

  struct Line {
    std::string text;  // without its end
    bool is_cut = false;
  };
  // Returns false at the end.
  bool next(Line& line);
  // Returns a later line, which stays to be read: 0 is the next one. Returns nullptr after the last one.
  const Line* peek(std::size_t ahead);
  std::int64_t number() const { return number_; }  // of the last line that next() gave, counted from 1
  const std::string& file_name() const { return file_name_; }

 private:
  bool fill();
  bool read(Line& line);

  std::istream& in_;
  std::string file_name_, buffer_;
  std::vector<std::string> rerun_;
  std::string_view rest_;
  std::size_t longest_;
  std::int64_t number_ = 0;
  bool first_ = true, after_return_ = false;
  std::deque<Line> ahead_;
};

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
  // The most lines that one record's quoted fields go on for, and its first line.
  std::int64_t longest_lines() const { return longest_lines_; }
  std::int64_t longest_at() const { return longest_at_; }

 private:
  void add_line(std::string_view line, std::vector<std::string>& fields);
  std::size_t opening_quote(std::string_view line, std::size_t at) const;
  bool is_around_field(std::string_view after_quote, std::size_t fields_before);

  LineReader& lines_;
  CsvFormat format_;
  std::size_t width_ = 0;  // fields of the first record; 0: it is not read yet
  std::int64_t record_line_ = 1, inner_line_ends_ = 0, longest_lines_ = 0, longest_at_ = 0;
  bool quoted_ = false;  // the record goes on in the next line
};

}  // namespace ringtrain
