// The words behind a command: options with a value, switches, and the rest.
#pragma once

#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace ringtrain {

struct Arguments {
  std::vector<std::string> inputs;
  std::map<std::string, std::string> values;
  std::set<std::string> switches;

  Arguments(const std::vector<std::string>& words, const std::set<std::string>& with_value,
            const std::set<std::string>& without) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::string word = words[i];
      if (word == "-" || !word.starts_with("-")) {
        inputs.push_back(word);
        continue;
      }
      const std::size_t equals = word.find('=');
      std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
      word = word.substr(0, equals);
      if (without.contains(word) && equals == std::string::npos) {
        switches.insert(word);
      } else if (!with_value.contains(word)) {
        throw Error(cat("unknown option ", words[i]), "--help lists the options");
      } else if (equals == std::string::npos && i + 1 == words.size()) {
        throw Error(cat("option ", word, " needs a value"));
      } else {
        values[word] = equals == std::string::npos ? words[++i] : value;
      }
    }
  }

  bool has(const std::string& name) const { return switches.contains(name); }
  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : found->second;
  }
  template <class T>
  T number(const std::string& name, T otherwise) const {
    const auto found = values.find(name);
    if (found == values.end()) return otherwise;
    const std::string& value = found->second;
    T result{};
    const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (failed != std::errc{} || end != value.data() + value.size()) {
      throw Error(cat("option ", name, ": '", value, "' is not a number of the right kind"));
    }
    return result;
  }
  std::optional<double> share() const {
    if (!values.contains("--validation")) return std::nullopt;
    return number<double>("--validation", 0);
  }
  std::string one_input() const {
    if (inputs.size() == 1) return inputs[0];
    throw Error(cat("expected one INPUT, found ", inputs.size()), "--help shows the command");
  }
};

}  // namespace ringtrain
