#include "base/foreign_files.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/cat.h"
#include "base/user_text.h"

namespace ringtrain {
namespace {

struct Compression {
  std::string_view start, name, command;
};

constexpr Compression compressions[] = {{"\x1f\x8b", "gzip", "gunzip"},
                                        {"\xfd"
                                         "7zXZ",
                                         "xz", "unxz"},
                                        {"BZh", "bzip2", "bunzip2"},
                                        {"\x28\xb5\x2f\xfd", "Zstandard", "unzstd"}};
constexpr std::string_view markup[] = {"<!doctype", "<html", "<?xml", "<table", "<head", "<meta"};

}  // namespace

ForeignFile compressed_file(std::string_view start) {
  for (const Compression& each : compressions)
    if (start.starts_with(each.start))
      return {cat("compressed with ", each.name), cat("unpack it first: ", each.command)};
  return {};
}

std::string first_mark(std::string_view start) {
  if (start.starts_with("\xEF\xBB\xBF")) start.remove_prefix(3);
  std::string mark(start.substr(0, 256));
  std::erase_if(mark, [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; });
  return ascii_lower(mark);
}

bool is_markup(std::string_view start) {
  const std::string found = first_mark(start);
  return std::ranges::any_of(markup, [&](std::string_view mark) { return found.starts_with(mark); });
}

ForeignFile foreign_file(std::string_view start) {
  if (ForeignFile file = compressed_file(start)) return file;
  if (start.starts_with("version https://git-lfs"))
    return {"a pointer of Git LFS, without the data", "fetch the file itself: git lfs pull"};
  if (is_markup(start)) return {"a web page", "download the file itself, not the page that shows it"};
  return {};
}

std::vector<std::string> members_of_zip(std::string_view end) {
  std::vector<std::string> names;
  constexpr std::size_t fixed_bytes = 46, length_at = 28;
  for (std::size_t at = end.find("PK\x01\x02"); at != std::string::npos; at = end.find("PK\x01\x02", at + 4)) {
    if (at + fixed_bytes > end.size()) break;
    std::uint16_t length = 0;
    std::memcpy(&length, end.data() + at + length_at, sizeof length);
    names.emplace_back(end.substr(at + fixed_bytes, length));
  }
  return names;
}

}  // namespace ringtrain
