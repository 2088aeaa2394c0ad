// Reads the names in a file of any size: one per line, or one column of a CSV file (RFC 4180).
//
// for_each_name() is what the conversion of names calls. It looks at the ending of the file's name to choose between
// lines and CSV. For CSV, choose_column() finds the column in the first record, and CsvReader reads one record after
// the other through a buffer, so the file need not fit into memory. Names are passed on unchanged. Trimming and
// dropping names is the work of data_prep/text/clean_names.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// Reads the records of a CSV text. A quoted field may hold separators, line ends and doubled quotes. Lines end in LF or
// CRLF. A byte-order mark is skipped. The separator (comma, semicolon or tab) is taken from the first record.
class CsvReader {
 public:
  CsvReader(std::istream& in, std::string file_name);
  // Returns false at the end. Throws Error that names the line if a quoted field never ends.
  bool next(std::vector<std::string>& fields);
  std::int64_t line() const { return record_line_; }  // first line of the last record, counted from 1

 private:
  int get();
  int peek();
  bool fill();
  void choose_separator();

  std::istream& in_;
  std::string file_name_, buffer_;
  std::size_t position_ = 0;
  std::int64_t line_ = 1, record_line_ = 1;
  char separator_ = ',';
};

// Returns the column of names: the one asked for, or the one called "name" (in any case), or the only one whose header
// contains "name". Throws Error that lists the columns.
std::size_t choose_column(const std::vector<std::string>& header, const std::string& asked,
                          const std::string& file_name);

struct NameSource {
  std::string path;    // "-": standard input
  std::string column;  // not empty: CSV; empty: CSV when the path ends in .csv or .tsv
};

// Calls `use` with every name, unchanged. Returns the column's header, or "" for lines. `short_records` counts CSV
// records that have no such field. Throws Error if the file cannot be read.
std::string for_each_name(const NameSource& source, const std::function<void(std::string_view)>& use,
                          std::int64_t& short_records);

}  // namespace ringtrain
