// Aligned tables for the terminal: the summary of a run before step 0, the output of `ringtrain plan`.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

// Sections of "key   value" rows; all values start in the same column. A value of several lines is indented to it.
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

// Columns of the terminal that a UTF-8 text takes, one per character.
std::size_t display_width(const std::string& text);

// 1234567 -> "1,234,567"; 1536 -> "1.5 KiB".
std::string with_thousands(long long value);
std::string readable_bytes(double bytes);
// (1, "trial") -> "1 trial"; (1200, "trial") -> "1,200 trials".
std::string counted(long long count, const std::string& noun);
// "a, b, c".
std::string joined(const std::vector<std::string>& words);
// Significant digits: (0.123456, 3) -> "0.123".
std::string with_digits(double value, int digits = 6);

}  // namespace ringtrain
