// Reads a user's small YAML file strictly. The file must be one document. Otherwise an Error names file, line and
// column.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace ringtrain {

// Reads the file. Messages call it by `kind`, for example "experiment".
std::string read_yaml_text(const std::string& path, const std::string& kind);
// Returns the parsed document. It is not null, but need not be a map.
YAML::Node load_yaml_document(const std::string& yaml, const std::string& path, const std::string& kind);

// Returns "exp.yaml:3:11: ". The mark counts from 0, the text from 1. A null mark stands for the beginning of the file.
std::string yaml_place(const std::string& path, const YAML::Mark& mark);

}  // namespace ringtrain
