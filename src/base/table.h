// Aligned tables for the terminal, for the summary of a run before step 0 and the output of `ringtrain plan`.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

// A table has sections with rows of "key   value". All values start in the same column. Further lines of a value are
// indented to that column.
class Table {
 public:
  void section(const std::string& title);
  void row(const std::string& key, const std::string& value);
  std::string str() const;  // ends with a newline

 private:
  struct Row {
    bool is_section = false;
    std::string key, value;
  };
  std::vector<Row> rows_;
};

// Returns the number of terminal columns that a UTF-8 text takes, one per character.
std::size_t display_width(const std::string& text);

// 1234567 -> "1,234,567"; 1536 -> "1.5 KiB".
std::string with_thousands(long long value);
std::string readable_bytes(double bytes);
// (1, "trial") -> "1 trial"; (1200, "trial") -> "1,200 trials".
std::string counted(long long count, const std::string& noun);
// "a, b, c".
std::string joined(const std::vector<std::string>& words);
// Returns the value with so many significant digits: (0.123456, 3) -> "0.123".
std::string with_digits(double value, int digits = 6);

}  // namespace ringtrain
