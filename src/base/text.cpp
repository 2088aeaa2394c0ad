#include "base/text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ringtrain {
namespace {

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::string quoted(const std::string& word) {
  constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string ascii_lower(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest_word(std::string_view word, std::span<const std::string_view> known) {
  if (word.size() > 100) return "";
  std::string_view best;
  std::size_t best_cost = std::max<std::size_t>(2, word.size() / 3 + 1);
  for (const std::string_view candidate : known) {
    const std::size_t cost = edit_distance(word, candidate);
    if (cost < best_cost) best = candidate, best_cost = cost;
  }
  return best.empty() ? "" : cat("; did you mean '", best, "'?");
}

std::string expand_path(std::string_view path, std::string_view what) {
  const auto value_of = [&](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0')
      throw Error(cat(what, " is ", path, " but the environment variable ", name, " is not set",
                      value != nullptr ? " (it is empty)" : ""),
                  cat("export ", name, ", or write the whole path"));
    return std::string(value);
  };
  std::string out;
  std::size_t at = 0;
  if (path.starts_with('~')) {
    if (path.size() > 1 && path[1] != '/')
      throw Error(cat(what, " is ", path, ", expected ~/ for your home folder"), "write the whole path");
    out = value_of("HOME");
    at = 1;
  }
  while (at < path.size()) {
    const std::string_view rest = path.substr(at);
    const bool braced = rest.starts_with("${");
    const std::size_t begin = braced ? 2 : 1;
    std::size_t end = begin;
    while (rest[0] == '$' && end < rest.size() && is_name_character(rest[end])) ++end;
    const bool named = rest[0] == '$' && end > begin && (!braced || (end < rest.size() && rest[end] == '}'));
    if (named) out += value_of(std::string(rest.substr(begin, end - begin)));
    if (!named) out += rest[0];
    at += named ? end + (braced ? 1 : 0) : 1;
  }
  return out;
}

std::string shell_command(const std::vector<std::string>& words) {
  return joined(words, " ", quoted);
}

std::string python_text(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += cat(c == '\'' || c == '\\' ? "\\" : "", c);
  return result + "'";
}

}  // namespace ringtrain
