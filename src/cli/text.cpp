#include "cli/text.h"

#include <sstream>

namespace ringtrain {

std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t hanging) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(" ")) {
      out += std::string(indent, ' ') + line + "\n";
      continue;
    }
    std::istringstream words(line);
    std::string current;
    std::size_t margin = indent;
    for (std::string word; words >> word;) {
      if (!current.empty() && margin + current.size() + 1 + word.size() > width) {
        out += std::string(margin, ' ') + current + "\n";
        current.clear();
        margin = indent + hanging;
      }
      current += (current.empty() ? "" : " ") + word;
    }
    out += (current.empty() ? "" : std::string(margin, ' ') + current) + "\n";
  }
  return out;
}

std::string entry(const std::string& name, const std::string& text, std::size_t name_width, std::size_t width) {
  const std::size_t column = 2 + name_width + 2;
  const std::string lines = wrapped(text, column, width);
  if (name.size() > name_width) return "  " + name + "\n" + lines;
  return "  " + name + std::string(name_width - name.size(), ' ') + "  " + lines.substr(column);
}

}  // namespace ringtrain
