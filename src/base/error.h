// The exception of this program. It says what went wrong, where in the code, and what the user can do.
//
// This folder has small tools that know nothing of training: errors and log lines, files that are replaced atomically,
// checksums, random numbers, UTF-8, signals, shared memory and tables for the terminal. Nearly every file of the
// program uses Error from this header and cat() from cat.h. Begin reading here, then in random.h and files.h.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

#include "base/cat.h"

namespace ringtrain {

// `what` is one clear sentence: the file, line or record, what was found, and what was expected. `hint` says what to
// do. Any code may throw it. If nothing else catches it, main() ends all ranks with a non-zero exit code.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string hint = "",
                 std::source_location where = std::source_location::current())
      : std::runtime_error(what), hint_(std::move(hint)), where_(where) {}
  const std::string& hint() const { return hint_; }
  const std::source_location& where() const { return where_; }

 private:
  std::string hint_;
  std::source_location where_;
};

// Returns the place where the error was thrown, for example "src/config/reader.cpp:81". "" for exceptions of other
// libraries.
inline std::string thrown_at(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own == nullptr ? "" : cat(own->where().file_name(), ":", own->where().line());
}

// Returns the line that --verbose adds to the message of an error.
inline std::string described_place(const std::exception& error) {
  const std::string place = thrown_at(error);
  return place.empty() ? "thrown by a library of this program" : "thrown at " + place;
}

// The error that the training itself has failed: its numbers are no longer finite. The program and the machine are not
// at fault.
class Diverged : public Error {
 public:
  using Error::Error;
};

// The exit codes of `ringtrain`, and what --help and the man page say of them. results/runs.md lists them too, and a
// test compares the two.
inline constexpr int exit_failed = 1;
inline constexpr int exit_usage = 2;
// A run was asked to stop (SIGTERM, SIGUSR1, Ctrl-C) and wrote a checkpoint first.
inline constexpr int exit_checkpointed = 85;
// The watchdog ended a job that made no progress, or the start of MPI took too long.
inline constexpr int exit_hung = 86;

struct ExitCode {
  int code;
  const char* meaning;
};

inline constexpr ExitCode exit_codes[] = {
    {0, "the command did what it was asked to do"},
    {exit_failed, "an error, which was printed; or a trial of a study failed"},
    {exit_usage, "no command was given"},
    {exit_checkpointed, "a run was asked to stop and wrote a checkpoint first: train --resume goes on"},
    {exit_hung, "the watchdog ended a job that did not move or whose start took too long"},
};

}  // namespace ringtrain
