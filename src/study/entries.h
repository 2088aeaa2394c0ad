// Reads the maps and values of a study file strictly. An Error names file, line and column of a mistake.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

struct Entry {
  std::string key;
  YAML::Node node;
  // The place of the key, and the place of its value: "study.yaml:7:3: ". If the key has no value, both are the place
  // of the key.
  std::string key_place, place;
};

// Throws Error: "study.yaml:7:11: repeat is 'many', expected ...".
[[noreturn]] void refuse(const Entry& entry, const std::string& expected, const std::string& hint = "");

// Returns the entries of a map. Throws Error if the node is not a map or if a key occurs twice. The message contains
// `what` and `example`.
std::vector<Entry> entries(const YAML::Node& map, const std::string& path, const std::string& what,
                           std::string_view example);

double number_of(const Entry& entry, double low, double high, const std::string& expected);
std::int64_t integer_of(const Entry& entry, double low, double high);
std::string word_of(const Entry& entry, std::initializer_list<std::string_view> words);

// Returns the text of a value as it follows the '=' of an override: "0.1", "[30, 60]".
std::string override_text(const YAML::Node& node, const Entry& entry);

}  // namespace ringtrain
