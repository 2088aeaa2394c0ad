// The report of `ringtrain train --report FILE`: how a run has ended. A study reads it.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace ringtrain {

struct TrialReport {
  // finished; paused: it reached the samples of --pause-after; stopped: by a signal; diverged or failed: by an error.
  enum class End { finished, paused, stopped, diverged, failed } end = End::finished;
  std::string error, hint, thrown_at;  // of the error; "": none
};

// Returns the report of a run that this error has ended.
TrialReport report_of(const std::exception& error);

// Replaces the file. If several ranks report errors, the first report stays, unless a later one says that the run has
// diverged: rank 0 alone looks for values of a checkpoint that are not finite, and its end causes the errors of the
// other ranks. Throws nothing: without a report, the exit code says less.
void write_report(const std::string& path, const TrialReport& report);

// Returns nothing if the file is missing or damaged.
std::optional<TrialReport> read_report(const std::string& path);

}  // namespace ringtrain
