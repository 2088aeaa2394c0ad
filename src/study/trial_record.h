// Reads and writes trial.json, the state of a trial. The file is in the trial's folder. It is replaced as a whole, so
// no reader sees a part of it. Only the process that holds the folder's lock writes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/experiment.h"

namespace ringtrain {

// waiting: has not begun, was asked to stop and goes on with --resume, or is at the end of a search's rung. running:
// some job works on it, or was killed while it did (then the folder's lock is free). diverged: loss or gradient were no
// longer finite, or the run finished with a training loss above that of its first step. failed: any other error.
enum class TrialState { waiting, running, finished, failed, diverged };
inline constexpr const char* trial_states[] = {"waiting", "running", "finished", "failed", "diverged"};
inline const char* to_string(TrialState state) {
  return trial_states[static_cast<int>(state)];
}

// How the newest start ended, or where it stands, from the run's own files. Losses are means in nats.
struct TrialOutcome {
  std::string outcome;  // as in run.json: "finished", "stopped by SIGUSR1", "error: ..."
  std::int64_t final_step = 0, samples = 0;
  double elapsed_seconds = 0;                                            // of the run, earlier starts included
  std::optional<double> loss, accuracy;                                  // of the last update
  std::optional<double> validation_loss, validation_accuracy;            // of the last evaluation
  std::optional<double> best_validation_loss, best_validation_accuracy;  // of all evaluations
  std::optional<std::int64_t> best_step;                                 // that with the best loss
  // The last twentieth of the steps had a higher mean loss than the first step; of fewer than 20 steps, or where the
  // first one is not step 1 (a branch), twice as high.
  bool ran_away = false;
};
// Reads run.json and metrics.jsonl; what is missing or broken in them is left out.
TrialOutcome read_outcome(const std::string& folder);

struct TrialRecord {
  // Values from the study, which are the same in every start.
  std::string name;
  std::vector<std::string> also;  // other names of the same trial
  std::string overrides = "{}";   // a JSON object: key -> value
  std::int64_t ranks = 1;
  std::uint64_t seed = 1;

  TrialState state = TrialState::waiting;
  std::int64_t starts = 0;              // how often it was taken
  std::string job;                      // that took it last
  std::string updated;                  // UTC
  std::optional<TrialOutcome> outcome;  // none: it has not begun
  std::int64_t rung = 0;                // of search: halving: the last that it belongs to, from 1; 0: no search
  std::vector<double> rung_losses;      // its validation loss at the end of each; NaN: none
  bool paused = false;                  // waiting at the end of that rung, evaluated
  bool left_behind = false;             // there, for good: others went on
  std::string error, hint, thrown_at;   // of the newest start; "": none
  bool is_over() const { return state == TrialState::finished || state == TrialState::diverged; }
};

// "key=value" overrides as a JSON object, with numbers as numbers.
std::string overrides_to_json(const std::vector<std::string>& overrides, const Experiment& experiment);

std::string to_json(const TrialRecord& record);                          // of several lines, without a last newline
void write_trial_record(const std::string& folder, TrialRecord record);  // with the time. Throws Error
// State, outcome and so on in the folder's trial.json, into a record that has the study's part. False, and nothing
// changed, where there is none or it cannot be read.
bool read_trial_record(const std::string& folder, TrialRecord& record);

}  // namespace ringtrain
