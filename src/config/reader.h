// The strict reader of experiment files, and the writers that come from the same schema.
#pragma once

#include <string>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

// What a command line names: an experiment file and keys that change it.
struct ExperimentArguments {
  std::string path;
  std::vector<std::string> overrides;  // key.path=value
};

// Reads `path` and applies `overrides` ("key.path=value", later ones win), then checks every range and every
// contradiction between keys that needs no data set. Throws Error: one sentence that names file, line and column (or
// the override), what was expected, and the nearest known key for an unknown one.
// A file beside a run.json was stored by a run: its retired keys are read as what they mean now (retired_keys.h).
Experiment read_experiment(const std::string& path, const std::vector<std::string>& overrides);
Experiment parse_experiment(const std::string& yaml, const std::string& path,
                            const std::vector<std::string>& overrides);
// The same for what a run has stored, in a checkpoint say.
Experiment parse_stored_experiment(const std::string& yaml, const std::string& path,
                                   const std::vector<std::string>& overrides);

// The resolved experiment as YAML, every key present; reading it back gives the same experiment.
std::string to_yaml(const Experiment& experiment);

// configs/README.md: every key with type, unit, default and meaning.
std::string schema_markdown();

}  // namespace ringtrain
