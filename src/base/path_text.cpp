#include "base/path_text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/error.h"

namespace ringtrain {
namespace {

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

}  // namespace

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

}  // namespace ringtrain
