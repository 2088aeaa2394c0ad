#include "data_prep/tables/lines.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

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

}  // namespace ringtrain
