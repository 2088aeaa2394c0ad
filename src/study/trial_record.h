// Reads and writes the files that say how a trial goes: trial.json, its state, and the report of its run.
//
// trial.json is in the trial's folder. It is replaced as a whole, so no reader sees a part of it. Only the process that
// holds the folder's lock writes it.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "config/experiment.h"

namespace ringtrain {

// waiting: the trial has not begun, or was asked to stop and continues with --resume, or is at the end of a rung of a
// search. running: a job works on the trial, or was killed while it worked on it (then the folder's lock is free).
// diverged: the loss or gradient was no longer finite, or the run finished and had run away (TrialOutcome::ran_away).
// failed: the run ended with any other error.
enum class TrialState { waiting, running, finished, failed, diverged };
inline constexpr const char* trial_states[] = {"waiting", "running", "finished", "failed", "diverged"};
inline const char* to_string(TrialState state) {
  return trial_states[static_cast<int>(state)];
}

// The end or the progress of the newest start, from the run's own files. Losses are means in nats.
struct TrialOutcome {
  std::string outcome;  // as in run.json: "finished", "stopped by SIGUSR1", "error: ..."
  std::string end;      // as in run.json, of a finished run: "target reached", "all steps done", ...; "": not finished
  std::int64_t final_step = 0, samples = 0;
  double elapsed_seconds = 0;                                            // time of the run, including earlier starts
  std::optional<double> loss, accuracy;                                  // values of the last update
  std::optional<double> validation_loss, validation_accuracy;            // values of the last evaluation
  std::optional<double> best_validation_loss, best_validation_accuracy;  // best values of all evaluations
  std::optional<std::int64_t> best_step;                                 // step of the best loss
  // Whether the mean loss of the last twentieth of the steps is higher than the loss of the first step. In a run of
  // fewer than 20 steps, or one that does not begin with step 1 (a branch), it must be more than twice as high.
  bool ran_away = false;
};
// Reads run.json and metrics.jsonl. A missing or unreadable value keeps its default.
TrialOutcome read_outcome(const std::string& folder);

struct TrialRecord {
  // Values from the study, which are the same in every start.
  std::string name;
  std::vector<std::string> also;  // other names of the same trial
  std::string overrides = "{}";   // a JSON object: key -> value
  std::int64_t ranks = 1;
  std::uint64_t seed = 1;

  TrialState state = TrialState::waiting;
  std::int64_t starts = 0;              // how often a job has begun or continued the trial
  std::string job;                      // the last job that worked on the trial
  std::string updated;                  // time at which trial.json was written, in UTC
  std::optional<TrialOutcome> outcome;  // none: the trial has not begun
  std::int64_t rung = 0;                // the trial's last rung of search: halving, from 1; 0: no search
  std::vector<double> rung_losses;      // validation loss at the end of each rung; NaN: none
  bool paused = false;                  // whether the trial waits at the end of that rung, evaluated
  bool left_behind = false;             // whether the trial never continues, because it was not promoted
  std::string error, hint, thrown_at;   // for the newest start; "": none
  bool is_over() const { return state == TrialState::finished || state == TrialState::diverged; }
};

// Writes "key=value" overrides as a JSON object, with numbers as numbers.
std::string overrides_to_json(const std::vector<std::string>& overrides, const Experiment& experiment);

std::string to_json(const TrialRecord& record);                          // several lines without a final newline
void write_trial_record(const std::string& folder, TrialRecord record);  // sets `updated`. Throws Error
// Reads the state, outcome and other progress from the folder's trial.json into `record`, which has the study's part.
// Returns false and changes nothing if the file is missing or cannot be read.
bool read_trial_record(const std::string& folder, TrialRecord& record);

// The report of `ringtrain train --report FILE`: how a run has ended. A study reads it.

struct TrialReport {
  // finished; paused: it reached the samples of --pause-after; stopped: by a signal; diverged or failed: by an error.
  enum class End { finished, paused, stopped, diverged, failed } end = End::finished;
  std::string error, hint, thrown_at;  // of the error; "": none
};

// Returns the report of a run that this error has ended.
TrialReport report_of(const std::exception& error);

// The kind of the file, for base/output_file.h.
OutputKind report_file();

// Replaces the file. If several ranks report errors, the first report stays, unless a later one says that the run has
// diverged: rank 0 alone looks for values of a checkpoint that are not finite, and its end causes the errors of the
// other ranks. Throws nothing: without a report, the exit code says less.
void write_report(const std::string& path, const TrialReport& report);

// Returns nothing if the file is missing or damaged.
std::optional<TrialReport> read_report(const std::string& path);

}  // namespace ringtrain
