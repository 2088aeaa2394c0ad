// An experiment whose keys are still being set, first from its file and then from overrides.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

// Copies are independent. A study can therefore read a file once and make many experiments that differ in a few keys.
// The caller chooses how a message names the place of a change: "study.yaml:7:3: " or "override 'seed=2': ".
class ExperimentDraft {
 public:
  // Reads the keys of a user's file, or of its text. Throws Error as read_experiment() does. Missing required keys and
  // contradictions are allowed until finish().
  explicit ExperimentDraft(const std::string& path);
  ExperimentDraft(const std::string& yaml, const std::string& path);
  ExperimentDraft(const ExperimentDraft& other);
  ExperimentDraft& operator=(const ExperimentDraft& other);
  ~ExperimentDraft();

  void apply_override(const std::string& text);  // "key.path=value"
  // Sets a key. `value` is the text that an override has after the '='. Throws an Error that begins with `place`.
  void set(const std::string& key, const std::string& value, const std::string& place);

  const Experiment& values() const;  // the keys set so far; every other key has its default
  bool is_given(std::string_view key) const;

  // Returns the checked experiment. Throws Error for a missing required key, and for a contradiction. The error of a
  // contradiction names the place of the key that was set last.
  const Experiment& finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
