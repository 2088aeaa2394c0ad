// Lines of fields, with a separator between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace ringtrain {

// Returns the parts of a text between the separators, empty ones too. There are at most `most` parts: the last one has
// the rest of the text.
inline std::vector<std::string> split(const std::string& text, char separator, std::size_t most = std::string::npos) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (parts.size() + 1 < most) {
    const std::size_t end = text.find(separator, begin);
    if (end == std::string::npos) break;
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// Returns the text with blanks in place of tabs and line ends.
inline std::string in_one_field(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return text;
}

}  // namespace ringtrain
