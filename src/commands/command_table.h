// The table of the commands of `ringtrain`, with their arguments and the ranks that do their work.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cluster/session.h"

namespace ringtrain {

struct Command {
  const CLI::App* words = nullptr;  // the command's part of the command line
  // Returns whether rank 0 alone does the work. Valid after the words were read.
  std::function<bool()> for_one_process;
  bool trains = false;  // a signal ends the command with a checkpoint
  // Does the work and returns the exit code. `session` is null if the command needs only one process and the job has
  // only one, because MPI is then not started.
  std::function<int(Session*)> run;
};

// Adds all commands to the program. `command_line` is what the user has typed, for the record of a run.
std::vector<Command> declare_commands(CommandLine& program, const std::vector<std::string>& command_line);

}  // namespace ringtrain
