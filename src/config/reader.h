// The strict reader of experiment files.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

// key.path=null takes a key back to its default, as if the file did not give it. A required key has no default.
inline constexpr std::string_view no_value = "null";

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

// An experiment whose keys are still being set, first from its file and then from overrides.
//
// Copies are independent. A study can therefore read a file once and make many experiments that differ in a few keys.
// The caller chooses how a message names the place of a change: "study.yaml:7:3: " or "override 'seed=2': ".
class ExperimentDraft {
 public:
  // A place in the file or in an override. `order` sorts all places: the file from its first line to its last, then the
  // overrides.
  struct Place {
    std::string prefix;               // "exp.yaml:3:11: " or "override 'seed=x': "
    std::tuple<int, int, int> order;  // (0, line, column) or (number of the override from 1, 0, 0)
  };
  using GivenKeys = std::map<std::string_view, Place>;
  using Sections = std::map<std::string, Place, std::less<>>;  // "": the file itself

  // Reads the keys of a user's file, or of its text. Throws Error as read_experiment() does. Missing required keys and
  // contradictions are allowed until finish().
  explicit ExperimentDraft(const std::string& path);
  ExperimentDraft(const std::string& yaml, const std::string& path);

  void apply_override(const std::string& text);  // "key.path=value"
  // Sets a key. `value` is the text that an override has after the '=', such as no_value. Throws an Error that begins
  // with `place`.
  void set(const std::string& key, const std::string& value, const std::string& place);

  const Experiment& values() const { return experiment_; }  // the keys set so far; every other key has its default
  bool is_given(std::string_view key) const { return given_.contains(key); }

  // Returns the checked experiment. Throws Error for a missing required key, and for a contradiction. The error of a
  // contradiction names the place of the key that was set last.
  const Experiment& finish() const;

 private:
  const Place& section_place(std::string_view section) const;

  Experiment experiment_;
  GivenKeys given_;
  Sections sections_;
  int changes_ = 0;
};

}  // namespace ringtrain
