#include "data_prep/tables/csv.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr std::size_t piece_bytes = 1 << 20;
constexpr const char* byte_order_mark = "\xEF\xBB\xBF";
// The number of bytes after which a line cannot be a name. The rest of such a line is dropped, so that a file without
// line ends cannot fill the memory.
constexpr std::size_t longest_line = 1 << 16;

bool read_piece(std::istream& in, std::string& buffer, const std::string& file_name) {
  buffer.resize(piece_bytes);
  in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
  buffer.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) throw Error(cat(file_name, ": cannot read: ", std::strerror(errno)));
  return !buffer.empty();
}

std::string ascii_lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return text;
}

void for_each_line(std::istream& in, const std::string& file_name, const std::function<void(std::string_view)>& use) {
  std::string buffer, line;
  bool first = true;
  while (read_piece(in, buffer, file_name)) {
    std::string_view rest = buffer;
    if (first) {
      check_not_utf16(rest, file_name);
      if (rest.starts_with(byte_order_mark)) rest.remove_prefix(3);
      first = false;
    }
    for (std::size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      line += rest.substr(0, end);
      use(line);
      line.clear();
    }
    if (line.size() < longest_line) line += rest;
  }
  if (!line.empty()) use(line);
}

}  // namespace

CsvReader::CsvReader(std::istream& in, std::string file_name) : in_(in), file_name_(std::move(file_name)) {
  if (!fill()) return;
  check_not_utf16(buffer_, file_name_);
  if (buffer_.starts_with(byte_order_mark)) position_ = 3;
  choose_separator();
}

void CsvReader::choose_separator() {
  const std::size_t length = std::min(buffer_.find('\n', position_), buffer_.size()) - position_;
  const std::string_view header = std::string_view(buffer_).substr(position_, length);
  for (const char candidate : {',', ';', '\t'}) {
    if (header.find(candidate) != std::string_view::npos) {
      separator_ = candidate;
      return;
    }
  }
}

bool CsvReader::fill() {
  position_ = 0;
  return read_piece(in_, buffer_, file_name_);
}

int CsvReader::peek() {
  if (position_ == buffer_.size() && !fill()) return EOF;
  return static_cast<unsigned char>(buffer_[position_]);
}

int CsvReader::get() {
  const int c = peek();
  if (c == EOF) return EOF;
  ++position_;
  if (c == '\n') ++line_;
  return c;
}

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  record_line_ = line_;
  if (peek() == EOF) return false;
  fields.emplace_back();
  bool quoted = false;
  for (;;) {
    const int c = get();
    std::string& field = fields.back();
    if (quoted) {
      if (c == EOF) {
        throw Error(cat(file_name_, ", line ", record_line_, ": a quoted field never ends"),
                    "close the quotation mark \", or double it when it is part of the text");
      }
      if (c == '"' && peek() == '"') {
        field += static_cast<char>(get());
      } else if (c == '"') {
        quoted = false;
      } else {
        field += static_cast<char>(c);
      }
    } else if (c == EOF || c == '\n') {
      return true;
    } else if (c == '\r' && (peek() == '\n' || peek() == EOF)) {
      continue;
    } else if (c == separator_) {
      fields.emplace_back();
    } else if (c == '"' && field.empty()) {
      quoted = true;
    } else {
      field += static_cast<char>(c);
    }
  }
}

std::size_t choose_column(const std::vector<std::string>& header, const std::string& asked,
                          const std::string& file_name) {
  std::string columns;
  constexpr std::size_t most_shown = 20;
  for (std::size_t i = 0; i < std::min(header.size(), most_shown); ++i)
    columns += cat(i == 0 ? "" : ", ", shown(header[i]));
  if (header.size() > most_shown) columns += cat(", ... (", header.size(), " in all)");
  const auto matches = [&](auto&& test) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (test(header[i])) found.push_back(i);
    }
    return found;
  };
  if (!asked.empty()) {
    std::vector<std::size_t> found = matches([&](const std::string& column) { return column == asked; });
    if (found.empty()) {
      found = matches([&](const std::string& c) { return ascii_lower(c) == ascii_lower(asked); });
    }
    if (found.size() == 1) return found[0];
    throw Error(cat(file_name, ": ", found.empty() ? "no column" : "several columns", " '", asked,
                    "'; the columns are ", columns));
  }
  std::vector<std::size_t> found = matches([](const std::string& column) { return ascii_lower(column) == "name"; });
  if (found.empty()) {
    found = matches([](const std::string& c) { return ascii_lower(c).find("name") != std::string::npos; });
  }
  if (found.size() == 1) return found[0];
  throw Error(cat(file_name, ": ", found.empty() ? "no column" : "more than one column",
                  " is called 'name'; the columns are ", columns),
              "choose one with --column NAME");
}

std::string for_each_name(const NameSource& source, const std::function<void(std::string_view)>& use,
                          std::int64_t& short_records) {
  std::ifstream file;
  if (source.path != "-") {
    if (std::filesystem::is_directory(source.path)) throw Error(cat(source.path, ": is a directory, expected a file"));
    errno = 0;
    file.open(source.path, std::ios::binary);
    if (!file) throw Error(cat(source.path, ": cannot open: ", std::strerror(errno)));
  }
  std::istream& in = source.path == "-" ? std::cin : file;
  const std::string file_name = source.path == "-" ? "standard input" : source.path;
  const std::string lower = ascii_lower(source.path);
  if (source.column.empty() && !lower.ends_with(".csv") && !lower.ends_with(".tsv")) {
    for_each_line(in, file_name, use);
    return "";
  }
  CsvReader reader(in, file_name);
  std::vector<std::string> fields;
  if (!reader.next(fields)) throw Error(cat(file_name, ": is empty; expected a header with the columns' names"));
  const std::size_t column = choose_column(fields, source.column, file_name);
  const std::string header = fields[column];
  while (reader.next(fields)) {
    if (column < fields.size()) {
      use(fields[column]);
    } else if (fields.size() > 1 || !fields[0].empty()) {  // an empty line is not a record
      ++short_records;
    }
  }
  return header;
}

}  // namespace ringtrain
