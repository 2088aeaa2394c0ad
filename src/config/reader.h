// The strict reader of experiment files, and the writers that come from the same schema.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

// The experiment file and the overrides of a command line.
struct ExperimentArguments {
  std::string path;
  std::vector<std::string> overrides;  // key.path=value
};

// Reads `path` and applies `overrides` ("key.path=value"; the last one wins). Then checks every range, and every
// contradiction between keys that can be found without a data set. Throws Error. Its message is one sentence with the
// file, line and column (or the override), the expected value, and for an unknown key the nearest known key.
Experiment read_experiment(const std::string& path, const std::vector<std::string>& overrides);
Experiment parse_experiment(const std::string& yaml, const std::string& path,
                            const std::vector<std::string>& overrides);

// Returns the resolved experiment as YAML with every key, except keys whose place another one takes. Reading the text
// gives the same experiment again.
std::string to_yaml(const Experiment& experiment);

// Returns the text of configs/README.md: every key with type, unit, default, allowed values and meaning.
std::string schema_markdown();

}  // namespace ringtrain
