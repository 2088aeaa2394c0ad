#include "config/yaml_mistakes.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace ringtrain {
namespace {

constexpr std::string_view blanks = " \t\r";

std::size_t indentation(std::string_view line) {
  return std::min(line.find_first_not_of(blanks), line.size());
}

// Returns the line without its indentation, comment and trailing blanks.
std::string_view content_of(std::string_view line) {
  line.remove_prefix(indentation(line));
  if (line.starts_with('#')) return {};
  line = line.substr(0, line.find(" #"));
  return line.substr(0, line.find_last_not_of(blanks) + 1);
}

}  // namespace

std::string_view line_at(std::string_view text, int number) {
  for (; number > 0 && !text.empty(); --number) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find('\n'));
}

std::string missing_separator(std::string_view line) {
  const std::string_view content = content_of(line);
  const auto is_key = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  const auto key_end = std::find_if_not(content.begin(), content.end(), is_key);
  const std::string_view key(content.begin(), key_end);
  std::string_view value(key_end, content.end());
  if (key.empty() || (key[0] >= '0' && key[0] <= '9') || value.find(": ") != std::string_view::npos ||
      value.ends_with(':'))
    return "";
  if (value.empty()) return cat(shown(content), " has no colon, expected ", cut_to(key, 60), ": and a value");
  const bool has_blank = blanks.find(value[0]) != std::string_view::npos;
  value.remove_prefix(indentation(value));
  const bool has_colon = value.starts_with(':'), has_equals = value.starts_with('=');  // key=value is for overrides
  if (!has_blank && !has_colon && !has_equals) return "";
  if (has_colon || has_equals) value.remove_prefix(1);
  value.remove_prefix(indentation(value));
  return cat(shown(content), has_colon ? " has no space after the colon" : " has no colon", ", expected ",
             cut_to(key, 60), ": ", cut_to(value, 60));
}

std::optional<YamlMistake> find_yaml_mistake(std::string_view yaml, int line, int column) {
  const auto text = [&](int number) { return line_at(yaml, number); };
  if (text(line).substr(0, indentation(text(line))).find('\t') != std::string_view::npos)
    return YamlMistake{line, column, "a tab in the indentation, expected spaces"};
  int before = line - 1;
  while (before > 0 && content_of(text(before)).empty()) --before;
  for (const int number : {line, before}) {
    if (number < 0) continue;
    const std::string what = missing_separator(text(number));
    if (!what.empty()) return YamlMistake{number, static_cast<int>(indentation(text(number))), what};
  }
  return std::nullopt;
}

}  // namespace ringtrain
