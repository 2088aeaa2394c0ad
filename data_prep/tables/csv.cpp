#include "data_prep/tables/csv.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "data_prep/text/encoding.h"

namespace ringtrain {
namespace {

constexpr std::size_t piece_bytes = 1 << 20;
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
constexpr char end_of_file_mark = '\x1A';

}  // namespace

LineReader::LineReader(std::istream& in, std::string file_name, std::size_t longest, std::vector<std::string> rerun)
    : in_(in), file_name_(std::move(file_name)), rerun_(std::move(rerun)), longest_(longest) {}

bool LineReader::fill() {
  buffer_.resize(piece_bytes);
  in_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  buffer_.resize(static_cast<std::size_t>(in_.gcount()));
  if (in_.bad()) throw Error(cat(file_name_, ": cannot read: ", std::strerror(errno)));
  rest_ = buffer_;
  if (first_) {
    check_is_utf8_text(rest_, file_name_, rerun_);
    check_is_no_markup(rest_, file_name_);
    while (rest_.starts_with(byte_order_mark)) rest_.remove_prefix(byte_order_mark.size());
  }
  first_ = false;
  return !buffer_.empty();
}

bool LineReader::read(Line& line) {
  line = {};
  bool any = false;
  for (;;) {
    if (rest_.empty() && !fill()) break;
    if (after_return_ && rest_.starts_with('\n')) rest_.remove_prefix(1);  // the second half of CR LF
    after_return_ = false;
    if (rest_.empty()) continue;
    any = true;
    const auto end = std::find_if(rest_.begin(), rest_.end(), [](char c) { return c == '\n' || c == '\r'; });
    const auto length = static_cast<std::size_t>(end - rest_.begin());
    if (!line.is_cut) line.text.append(rest_.substr(0, length));
    if (line.text.size() > longest_) {
      line.text = cut_to(line.text, longest_);
      line.is_cut = true;
    }
    const bool ended = length < rest_.size();
    after_return_ = ended && rest_[length] == '\r';
    rest_.remove_prefix(length + (ended ? 1 : 0));
    if (ended) return true;
  }
  if (line.text.ends_with(end_of_file_mark)) {
    line.text.pop_back();
    return !line.text.empty();
  }
  return any;
}

bool LineReader::next(Line& line) {
  if (ahead_.empty()) {
    if (!read(line)) return false;
  } else {
    line = std::move(ahead_.front());
    ahead_.pop_front();
  }
  ++number_;
  return true;
}

const LineReader::Line* LineReader::peek(std::size_t ahead) {
  while (ahead_.size() <= ahead) {
    Line line;
    if (!read(line)) return nullptr;
    ahead_.push_back(std::move(line));
  }
  return &ahead_[ahead];
}

namespace {

constexpr std::size_t none = std::string_view::npos;
constexpr std::size_t most_lines_ahead = 100;  // of a quoted field in a table with tabs

std::size_t skip_spaces(std::string_view line, std::size_t at) {
  while (at < line.size() && line[at] == ' ') ++at;
  return at;
}

// Returns the place of the quotation mark that closes a field, searching from `at`. A doubled one is part of the field.
std::size_t closing_quote(std::string_view line, std::size_t at) {
  for (at = line.find('"', at); at != none; at = line.find('"', at + 2)) {
    if (at + 1 == line.size() || line[at + 1] != '"') return at;
  }
  return none;
}

}  // namespace

// Returns the place of the quotation mark with which the field at `at` begins, or npos.
std::size_t CsvReader::opening_quote(std::string_view line, std::size_t at) const {
  if (!format_.quotes) return none;
  at = skip_spaces(line, at);
  return at < line.size() && line[at] == '"' ? at : none;
}

// For a table with tabs: returns whether a quotation mark at the beginning of a field is one around it. `after_quote`
// is the rest of the line.
bool CsvReader::is_around_field(std::string_view after_quote, std::size_t fields_before) {
  const auto separators = [&](std::string_view text) {
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), format_.separator));
  };
  const auto closes =
      [&](std::string_view line) {  // returns the place after a closing quotation mark that fits, or npos
        const std::size_t quote = closing_quote(line, 0);
        if (quote == none) return none;
        const std::size_t after = skip_spaces(line, quote + 1);
        return after == line.size() || line[after] == format_.separator ? after : none;
      };
  if (closing_quote(after_quote, 0) != none) return closes(after_quote) != none;
  if (width_ < 2) return false;
  const bool first_is_whole = fields_before + 1 + separators(after_quote) == width_;
  for (std::size_t ahead = 0; ahead < most_lines_ahead; ++ahead) {
    const LineReader::Line* line = lines_.peek(ahead);
    if (line == nullptr) return false;
    const bool is_whole = separators(line->text) + 1 >= width_;
    if (closing_quote(line->text, 0) == none && !is_whole) continue;
    const std::size_t after = closes(line->text);
    return after != none && !(is_whole && first_is_whole) &&
           fields_before + 1 + separators(std::string_view(line->text).substr(after)) == width_;
  }
  return false;
}

// Adds the fields of one line, which may begin inside a quoted field.
void CsvReader::add_line(std::string_view line, std::vector<std::string>& fields) {
  std::size_t at = 0;
  bool in_quotes = std::exchange(quoted_, false);
  if (in_quotes) fields.back() += '\n';
  for (;;) {
    if (!in_quotes) {
      fields.emplace_back();
      const std::size_t quote = opening_quote(line, at);
      if (quote == none || (format_.separator == '\t' && !is_around_field(line.substr(quote + 1), fields.size() - 1))) {
        const std::size_t end = std::min(line.find(format_.separator, at), line.size());
        fields.back() = line.substr(at, end - at);
        if (end == line.size()) return;
        at = end + 1;
        continue;
      }
      at = quote + 1;
    }
    in_quotes = false;
    const std::size_t quote = closing_quote(line, at);
    const std::string_view inner = line.substr(at, (quote == none ? line.size() : quote) - at);
    for (std::size_t i = 0; i < inner.size(); ++i) {
      fields.back() += inner[i];
      if (inner[i] == '"') ++i;  // the second one of a doubled quotation mark
    }
    if (quote == none) {
      quoted_ = true;
      return;
    }
    at = skip_spaces(line, quote + 1);
    if (at == line.size()) return;
    if (line[at] != format_.separator) {
      throw Error(
          cat(lines_.file_name(), ", line ", lines_.number(), ": a quoted field is followed by ",
              shown(line.substr(at, 20)), ", expected a separator or the line's end"),
          "double a quotation mark that is part of a field (\"\"), or use --no-quotes if they are letters here");
    }
    ++at;
  }
}

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  LineReader::Line line;
  std::size_t bytes = 0;
  do {
    if (!lines_.next(line)) {
      if (!quoted_) return false;
      throw Error(cat(lines_.file_name(), ", line ", record_line_, ": a quoted field never ends"),
                  "close the quotation mark \", double it when it is part of the text, or use --no-quotes if "
                  "quotation marks are letters in this table");
    }
    if (quoted_) {
      ++inner_line_ends_;
    } else {
      record_line_ = lines_.number();
    }
    bytes += line.text.size();
    if (line.is_cut || bytes > longest_table_line) {
      throw Error(cat(lines_.file_name(), ", line ", record_line_, ": a record of more than ", longest_table_line >> 20,
                      " MiB"),
                  "is this a table, and are its quotation marks closed?");
    }
    add_line(line.text, fields);
  } while (quoted_);
  if (const std::int64_t went_on = lines_.number() - record_line_; went_on > longest_lines_) {
    longest_lines_ = went_on;
    longest_at_ = record_line_;
  }
  if (width_ == 0) width_ = fields.size();
  return true;
}

}  // namespace ringtrain
