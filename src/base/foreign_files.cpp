#include "base/foreign_files.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/cat.h"

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

bool is_web_page(std::string_view start) {
  start.remove_prefix(std::min(start.find_first_not_of(" \t\r\n"), start.size()));
  std::string lower(start.substr(0, 16));
  std::ranges::transform(lower, lower.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower.starts_with("<!doctype") || lower.starts_with("<html") || lower.starts_with("<?xml");
}

}  // namespace

ForeignFile foreign_file(std::string_view start) {
  for (const Compression& each : compressions)
    if (start.starts_with(each.start))
      return {cat("compressed with ", each.name), cat("unpack it first: ", each.command)};
  if (start.starts_with("version https://git-lfs"))
    return {"a pointer of Git LFS, without the data", "fetch the file itself: git lfs pull"};
  if (is_web_page(start)) return {"a web page", "download the file itself, not the page that shows it"};
  return {};
}

std::string python_text(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += cat(c == '\'' || c == '\\' ? "\\" : "", c);
  return result + "'";
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
