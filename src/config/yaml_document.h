// Reads a user's small YAML file strictly. The file must be one document. Otherwise an Error names file, line and
// column.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>

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

}  // namespace ringtrain
