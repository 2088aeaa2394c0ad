// Aligned tables for the terminal, for the summary of a run before step 0 and the output of `ringtrain plan`.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/utf8.h"

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

// Formats numbers for readers: 1234567 becomes "1,234,567", and 1536 bytes become "1.5 KiB".
std::string with_thousands(long long value);
std::string readable_bytes(double bytes);
template <std::integral Bytes>
std::string readable_bytes(Bytes bytes) {
  return readable_bytes(static_cast<double>(bytes));
}
// Writes a number with a noun: (1, "trial") becomes "1 trial", and (1200, "trial") becomes "1,200 trials".
std::string counted(long long count, const std::string& noun);
// Returns what std::printf prints.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* pattern, ...);
// Writes the value with `digits` significant digits: (0.123456, 3) becomes "0.123".
std::string with_digits(double value, int digits = 6);

// Lists of names in messages.

// Returns "a, b and 5 more": at most `most` names, and how many others there are. Bytes that are not UTF-8 are escaped,
// because a terminal would show two such names as one.
inline std::string first_names(const std::vector<std::string>& names, std::size_t most = 10) {
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i)
    text += (i == 0 ? "" : ", ") + escape_invalid_utf8(names[i]);
  return names.size() > most ? cat(text, " and ", names.size() - most, " more") : text;
}

}  // namespace ringtrain
