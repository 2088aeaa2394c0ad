// Reads the lines of a text of any size. Lines end as on Linux (LF), Windows (CR LF) or old Macs (CR), also mixed.
#pragma once

#include <cstdint>
#include <deque>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// A byte-order mark at the beginning, and the end-of-file mark of DOS (Ctrl-Z) at the end, belong to no line.
class LineReader {
 public:
  // Longer lines are cut after `longest` bytes, between two symbols, so that a file without line ends cannot fill the
  // memory. Throws Error if the file is no UTF-8 text (data_prep/text/encoding.h, also for `rerun`) or cannot be read.
  LineReader(std::istream& in, std::string file_name, std::size_t longest, std::vector<std::string> rerun = {});

  struct Line {
    std::string text;  // without its end
    bool is_cut = false;
  };
  // Returns false at the end.
  bool next(Line& line);
  // Returns a later line, which stays to be read: 0 is the next one. Returns nullptr after the last one.
  const Line* peek(std::size_t ahead);
  std::int64_t number() const { return number_; }  // of the last line that next() gave, counted from 1
  const std::string& file_name() const { return file_name_; }

 private:
  bool fill();
  bool read(Line& line);

  std::istream& in_;
  std::string file_name_, buffer_;
  std::vector<std::string> rerun_;
  std::string_view rest_;
  std::size_t longest_;
  std::int64_t number_ = 0;
  bool first_ = true, after_return_ = false;
  std::deque<Line> ahead_;
};

}  // namespace ringtrain
