#include "base/table.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include "base/utf8.h"

namespace ringtrain {

void Table::section(const std::string& title) {
  rows_.push_back({true, title, ""});
}

void Table::row(const std::string& key, const std::string& value) {
  rows_.push_back({false, key, value});
}

std::string Table::str() const {
  std::size_t width = 0;
  for (const Row& row : rows_) {
    if (!row.is_section) width = std::max(width, symbol_count(row.key));
  }
  const std::string indent(width + 4, ' ');
  std::string text;
  for (const Row& row : rows_) {
    if (row.is_section) {
      text += row.key + "\n";
      continue;
    }
    text += "  " + row.key + std::string(width + 2 - symbol_count(row.key), ' ');
    for (const char c : row.value) {
      text += c;
      if (c == '\n') text += indent;
    }
    text += '\n';
  }
  return text;
}

std::string with_thousands(long long value) {
  std::string digits = std::to_string(value);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, 1, ',');
  return digits;
}

std::string readable_bytes(double bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return printed(unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

std::string counted(long long count, const std::string& noun) {
  return with_thousands(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string printed(const char* pattern, ...) {
  std::va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  std::string text(static_cast<std::size_t>(std::vsnprintf(nullptr, 0, pattern, arguments)), ' ');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  va_end(arguments);
  return text;
}

std::string with_digits(double value, int digits) {
  return printed("%.*g", digits, value);
}

}  // namespace ringtrain
