// The exit codes of `ringtrain`, and what --help and the man page say of them. results/runs.md lists them too, and a
// test compares the two.
#pragma once

namespace ringtrain {

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
