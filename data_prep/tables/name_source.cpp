#include "data_prep/tables/name_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "data_prep/tables/csv.h"
#include "data_prep/tables/layout.h"
#include "data_prep/text/encoding.h"

namespace ringtrain {

void NameTable::add(std::string_view name, std::uint64_t count) {
  if (2 * (size() + 1) > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = std::hash<std::string_view>{}(name)&mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    if (this->name(slots_[at] - 1) == name) {
      counts_[slots_[at] - 1] += count;
      return;
    }
  }
  if (size() >= std::numeric_limits<std::uint32_t>::max() - 1) throw Error("more than 4 billion distinct names");
  pool_ += name;
  offsets_.push_back(pool_.size());
  counts_.push_back(count);
  slots_[at] = static_cast<std::uint32_t>(size());
}

void NameTable::grow() {
  slots_.assign(std::max<std::size_t>(1024, 2 * slots_.size()), 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < size(); ++i) {
    std::size_t at = std::hash<std::string_view>{}(name(i)) & mask;
    while (slots_[at] != 0) at = (at + 1) & mask;
    slots_[at] = static_cast<std::uint32_t>(i + 1);
  }
}

NameTable NameTable::sorted() const {
  std::vector<std::uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); });
  NameTable result;
  for (const std::uint32_t i : order) result.add(name(i), count(i));
  return result;
}

namespace {

constexpr std::size_t longest_line = 1 << 16;  // bytes; a longer line cannot be a name
constexpr const char* comment_reason = "comment (a line that begins with #)";

NameTableInfo read_lines(LineReader& lines, bool check, const NameUser& user) {
  NameTableInfo info;
  if (check) check_is_no_table(lines);
  if (const LineReader::Line* first = lines.peek(0); check && first != nullptr && is_column_name(first->text, ""))
    info.seems_header = first->text;
  for (LineReader::Line line; lines.next(line);) {
    if (line.text.starts_with('#')) {
      user.drop(comment_reason, lines.number());
    } else {
      user.use(line.text);
    }
  }
  info.lines = lines.number();
  return info;
}

// Throws Error if the first record is taken for the header although it has a number in a field, and no field is called
// like a column of names.
void check_header(const LineReader& lines, const NameSource& source, const std::vector<std::string>& header) {
  if (source.header_line > 0) return;
  const auto is_number = [](const std::string& field) {
    return !field.empty() && field.find_first_not_of("0123456789.") == std::string::npos;
  };
  const auto number = std::ranges::find_if(header, is_number);
  if (number == header.end() || match_column(header, "", true).quality > 0 ||
      std::ranges::any_of(header, [&](const std::string& field) { return is_column_name(field, source.column); }))
    return;
  throw Error(cat(lines.file_name(), ": its first record is taken for the header, but holds the number ", *number),
              "give --no-header if it is a record, or --header-line 1 if it is the header");
}

// Returns the separator, and reads the line with which Excel names it, and the lines above the header.
char find_separator(LineReader& lines, const NameSource& source, const TableQuestion& question, const NameUser& user) {
  char separator = '\0';
  LineReader::Line line;
  const LineReader::Line* first = lines.peek(0);
  const bool named = first != nullptr && is_separator_line(first->text, separator);
  if (named) lines.next(line);
  while (lines.number() + 1 < source.header_line && lines.next(line))
    user.drop("line above the header (--header-line)", lines.number());
  if (!source.separator.empty()) return separator_of(source.separator);
  return named ? separator : guess_separator(lines, question);
}

void check_first_line(LineReader& lines, char separator, const TableQuestion& question) {
  const std::int64_t header = header_below_title(lines, separator, question);
  if (header == 0) return;
  const std::int64_t title = lines.number() + 1;
  throw Error(cat(lines.file_name(), ": line ", title, " looks like a title; the header seems to be line ", header,
                  ", expected the header first"),
              cat("delete the lines above it, or skip them with --header-line ", header, " (--header-line ", title,
                  ": line ", title, " is the header)"));
}

void check_widths(const std::string& file_name, std::int64_t long_rows, std::int64_t first, std::int64_t rows,
                  char separator) {
  if (long_rows == 0 || 2 * long_rows <= rows) return;
  throw Error(cat(file_name, ": ", long_rows, " of ", rows, " rows have more fields than the header, first line ",
                  first, " (separator ", separator_name(separator), ")"),
              "put fields that hold the separator in quotation marks, add the missing headers, or name the separator "
              "with --separator");
}

NameTableInfo read_table(LineReader& lines, const NameSource& source, bool tabs_first, const NameUser& user) {
  NameTableInfo info;
  const TableQuestion question = {source.column, source.has_header, source.has_quotes, tabs_first,
                                  source.header_line > 0};
  info.separator = find_separator(lines, source, question, user);
  check_first_line(lines, info.separator, question);
  CsvReader reader(lines, {info.separator, source.has_quotes});
  std::vector<std::string> fields, header;
  std::size_t column = 0, width = 0;
  std::int64_t rows = 0, long_rows = 0, first_long_row = 0;
  info.header_lines = source.header_line > 0 ? 0 : lines.number();
  while (reader.next(fields)) {
    if (is_blank_or_comment(fields, width)) {
      user.drop(is_blank(fields) ? "blank line" : comment_reason, reader.line());
      continue;
    }
    if (width == 0) {
      column = choose_column(fields, source.column, lines.file_name(), source.has_header);
      width = fields.size();
      info.column = source.has_header ? fields[column] : cat("number ", column + 1);
      if (source.has_header) {
        check_header(lines, source, fields);
        header = fields;
        info.header_lines += lines.number() - reader.line() + 1;
        info.inner_line_ends -= reader.inner_line_ends();  // those of the header are lines of the header
        continue;
      }
    }
    ++rows;
    if (fields[0].starts_with("\xEF\xBB\xBF")) fields[0].erase(0, 3);  // of a second file that was joined
    if (width > 1 && fields == header) {
      user.drop("header that occurs again", reader.line());
    } else if (count_filled(fields, width) > width) {
      if (long_rows++ == 0) first_long_row = reader.line();
      user.drop("record with more fields than the header", reader.line());
    } else if (column >= fields.size()) {
      user.drop("record without that column", reader.line());
    } else {
      if (fields.size() < width && info.short_rows++ == 0) info.first_short_row = reader.line();
      user.use(fields[column]);
    }
  }
  if (width == 0 && source.header_line > 0 && lines.number() > 0)
    throw Error(cat(lines.file_name(), ": has no header at line ", source.header_line,
                    " or below (--header-line); it has ", lines.number(), lines.number() == 1 ? " line" : " lines"),
                "give the number of the line that has the columns' names");
  if (width == 0) throw Error(cat(lines.file_name(), ": is empty; expected a header with the columns' names"));
  check_widths(lines.file_name(), long_rows, first_long_row, rows, info.separator);
  info.lines = lines.number();
  info.inner_line_ends += reader.inner_line_ends();
  info.longest_lines = reader.longest_lines();
  info.longest_at = reader.longest_at();
  return info;
}

}  // namespace

std::string shown_path(const std::string& path) {
  return path == "-" ? standard_input_name : path;
}

NameTableInfo for_each_name(const NameSource& source, const NameUser& user) {
  std::ifstream file;
  if (source.path != "-") {
    std::error_code failed;
    if (std::filesystem::is_directory(source.path, failed))
      throw Error(cat(source.path, ": is a directory, expected a file"));
    errno = 0;
    file.open(source.path, std::ios::binary);
    if (!file) throw Error(cat(source.path, ": cannot open: ", std::strerror(errno)));
  }
  const std::string lower = ascii_lower(source.path);
  const bool tabs = lower.ends_with(".tsv") || lower.ends_with(".tab");
  const bool named_as_table = tabs || lower.ends_with(".csv") || lower.ends_with(".psv");
  const bool one_name_a_line = source.separator == "none";
  const bool is_table = named_as_table || !source.column.empty() || !source.has_header || source.header_line > 0 ||
                        (!source.separator.empty() && !one_name_a_line);
  LineReader lines(source.path == "-" ? std::cin : file, shown_path(source.path),
                   is_table ? longest_table_line : longest_line, source.rerun);
  return is_table ? read_table(lines, source, tabs, user) : read_lines(lines, !one_name_a_line, user);
}

}  // namespace ringtrain
