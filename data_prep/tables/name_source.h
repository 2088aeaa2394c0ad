// Reads the names in a file of any size: one per line, or one column of a table.
//
// for_each_name() is what the conversion of names calls. It looks at the options and at the ending of the file's name
// to choose between lines (csv.h) and a table. For a table, it finds the separator and the column (layout.h), and reads
// one record after the other (csv.h), so the file need not fit into memory. Names are passed on unchanged. Cleaning
// them is the work of data_prep/text/clean_names.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// Stores distinct strings and their number of occurrences in one pool. 5 million names take a few hundred MB.
class NameTable {
 public:
  void add(std::string_view name, std::uint64_t count = 1);
  std::size_t size() const { return counts_.size(); }
  std::string_view name(std::size_t i) const {
    return std::string_view(pool_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  std::uint64_t count(std::size_t i) const { return counts_[i]; }
  NameTable sorted() const;  // by bytes, which is by code point in UTF-8

 private:
  void grow();
  std::string pool_;
  std::vector<std::uint64_t> offsets_ = {0}, counts_;
  std::vector<std::uint32_t> slots_;  // hash table with open addressing: 1 + index; 0: free
};

struct NameSource {
  std::string path;              // "-": standard input
  std::string column;            // not empty: a table; empty: a table when the path ends in .csv, .tsv, .tab or .psv
  std::string separator;         // as in separator_of(); not empty: a table; empty: it is guessed
  bool has_header = true;        // false: a table whose first line is a record
  bool has_quotes = true;        // false: quotation marks are letters
  std::int64_t header_line = 0;  // the lines above it are skipped; 0: the first line, unless it looks like a title
  std::vector<std::string> rerun = {};  // the words of a command that reads another file in the same way
};

// What a file was read as.
struct NameTableInfo {
  std::string column;        // the column's header; "" for lines
  std::string seems_header;  // the first line, if it was taken for a name and is the word for it
  char separator = '\n';     // '\n': lines
  // Every line is a row, one of the header's lines, or a line end in a quoted field.
  std::int64_t lines = 0, header_lines = 0, inner_line_ends = 0;
  std::int64_t longest_lines = 0, longest_at = 0;  // of a record's quoted fields: the lines after its first; that line
  std::int64_t short_rows = 0, first_short_row = 0;  // rows with a name but fewer fields than the header; a line
};

// Called for every row: with the name, or with the reason why the row has none and the row's line.
struct NameUser {
  std::function<void(std::string_view)> use;
  std::function<void(const std::string& reason, std::int64_t line)> drop;
};

// Throws Error if the file cannot be read, is no text, or if most of its records have more fields than the header.
NameTableInfo for_each_name(const NameSource& source, const NameUser& user);

std::string shown_path(const std::string& path);  // "standard input" for "-"

}  // namespace ringtrain
