#include "commands/command_line.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/error.h"

namespace ringtrain {
namespace {

constexpr const char* see_help = "ringtrain --help";

}  // namespace

CommandLine::CommandLine(int argc, char** argv) : whole_(argv, argv + argc) {
  if (argc > 1) rest_.assign(whole_.begin() + 1, whole_.end());
  // --verbose may come first; every other option belongs to a command.
  const auto command = std::find_if(rest_.begin(), rest_.end(), [](const auto& word) { return word != "--verbose"; });
  if (command == rest_.end()) return;
  command_ = *command;
  rest_.erase(command);
}

template <class T>
T CommandLine::take(std::size_t at, std::size_t count, T value) {
  const auto begin = rest_.begin() + static_cast<std::ptrdiff_t>(at);
  rest_.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
  return value;
}

bool CommandLine::flag(const std::string& name) {
  for (std::size_t i = 0; i < rest_.size(); ++i)
    if (rest_[i] == name) return take(i, 1, true);
  return false;
}

bool CommandLine::has(const std::string& name) const {
  return std::ranges::find(rest_, name) != rest_.end();
}

std::string CommandLine::option(const std::string& name, const std::string& fallback) {
  for (std::size_t i = 0; i < rest_.size(); ++i) {
    if (rest_[i].starts_with(name + "=")) return take(i, 1, rest_[i].substr(name.size() + 1));
    if (rest_[i] != name) continue;
    if (i + 1 == rest_.size()) throw Error(cat(name, " needs a value"), see_help);
    return take(i, 2, rest_[i + 1]);
  }
  return fallback;
}

double CommandLine::number(const std::string& name, double fallback, double least) {
  const std::string text = option(name, "");
  if (text.empty()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(value >= least) || value > 9e15)
    throw Error(cat(name, " is '", text, "'; expected a number of at least ", least), see_help);
  return value;
}

std::int64_t CommandLine::integer(const std::string& name, std::int64_t fallback, std::int64_t least) {
  const double value = number(name, static_cast<double>(fallback), static_cast<double>(least));
  if (value != static_cast<double>(static_cast<std::int64_t>(value)))
    throw Error(cat(name, " is ", value, "; expected a whole number"), see_help);
  return static_cast<std::int64_t>(value);
}

std::pair<std::int64_t, std::int64_t> CommandLine::share(const std::string& name) {
  const std::string text = option(name, "");
  if (text.empty()) return {0, 0};
  std::int64_t k = -1, n = -1;
  const char* last = text.data() + text.size();
  const auto slash = std::from_chars(text.data(), last, k);
  const bool has_slash = slash.ec == std::errc() && slash.ptr != last && *slash.ptr == '/';
  const auto end = has_slash ? std::from_chars(slash.ptr + 1, last, n) : slash;
  if (!has_slash || end.ec != std::errc() || end.ptr != last || n < 1 || k < 0 || k > n)
    throw Error(cat(name, " is '", text, "'; expected K/N, a share from 1/N to N/N"), see_help);
  return {k, n};
}

std::vector<std::string> CommandLine::list(const std::string& name, const std::string& fallback) {
  std::vector<std::string> values;
  std::istringstream text(option(name, fallback));
  for (std::string value; std::getline(text, value, ',');) values.push_back(value);
  return values;
}

std::string CommandLine::output(const std::string& name, const std::string& ending) {
  const std::string path = option(name, "");
  if (!path.empty()) expect_ending(name, path, ending);
  return path;
}

std::vector<std::string> CommandLine::words(std::initializer_list<const char*> known) {
  std::vector<std::string> found;
  while (!rest_.empty() && std::find(known.begin(), known.end(), rest_[0]) != known.end())
    found.push_back(take(0, 1, std::string(rest_[0])));
  return found;
}

std::string CommandLine::file(const std::string& what) {
  if (rest_.empty() || rest_[0].starts_with("--")) throw Error(cat("ringtrain ", command_, " needs ", what), see_help);
  return take(0, 1, std::string(rest_[0]));
}

ExperimentArguments CommandLine::experiment(const std::string& what) const {
  ExperimentArguments e = experiment_if_any();
  if (e.path.empty()) throw Error(cat("ringtrain ", command_, " needs ", what), see_help);
  return e;
}

ExperimentArguments CommandLine::experiment_if_any() const {
  ExperimentArguments e;
  for (const std::string& word : rest_) {
    if (word.starts_with("--")) throw Error(cat("ringtrain ", command_, ": unknown option ", word), see_help);
    const bool is_override = word.find('=') != std::string::npos;
    if (!is_override && e.path.empty())
      e.path = word;
    else if (is_override)
      e.overrides.push_back(word);
    else
      throw Error(cat("ringtrain ", command_, ": '", word, "' is a second file; expected key.path=value"), see_help);
  }
  if (e.path.empty() && !e.overrides.empty())
    throw Error(cat("ringtrain ", command_, ": ", e.overrides[0], " changes a key of no experiment"), see_help);
  return e;
}

void expect_ending(const std::string& option, const std::string& path, const std::string& ending) {
  if (path.ends_with(ending)) return;
  throw Error(cat(option, " is '", path, "'; expected a file that ends in ", ending),
              cat("the ending says what the file is: ", option, " ",
                  std::filesystem::path(path).replace_extension(ending).string()));
}

}  // namespace ringtrain
