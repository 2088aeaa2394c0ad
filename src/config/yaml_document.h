// Reads a user's small YAML file strictly: the file, which must be one document, and the maps and values of a study
// file. An Error names file, line and column of a mistake.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// Reads the file. Messages call it by `kind`, for example "experiment".
std::string read_yaml_text(const std::string& path, const std::string& kind);
// Returns the parsed document. It is not null, but need not be a map.
YAML::Node load_yaml_document(const std::string& yaml, const std::string& path, const std::string& kind);

// Returns "exp.yaml:3:11: ". The mark counts from 0, the text from 1. A null mark stands for the beginning of the file.
std::string yaml_place(const std::string& path, const YAML::Mark& mark);

// Better messages for common mistakes in YAML. The parser notices some of them one line too late, and calls them
// "illegal map value".

// Looks for a key that is not separated from its value, as in "depth:50" and "depth 50". Returns what is missing and
// what was expected, or "" for other lines. Indentation and a comment at the end are ignored.
std::string missing_separator(std::string_view line);

// Returns a line of a text. Lines count from 0. Returns "" after the end of the text.
std::string_view line_at(std::string_view text, int number);

// An entry of a map.
struct Entry {
  std::string key;
  YAML::Node node;
  // The place of the key, and the place of its value: "study.yaml:7:3: ". If the key has no value, both are the place
  // of the key.
  std::string key_place, place;
};

// Throws Error: "study.yaml:7:11: repeat is 'many', expected ...".
[[noreturn]] void refuse(const Entry& entry, const std::string& expected, const std::string& hint = "");

// Throws Error for an entry whose key is unknown. The message has the nearest known key, and the hint lists them all.
[[noreturn]] void refuse_key(const Entry& entry, std::span<const std::string_view> known);

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
