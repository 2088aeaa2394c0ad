// The commands of `ringtrain`: what each takes, which ranks do its work, and how it is called.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/program.h"
#include "cluster/session.h"

namespace ringtrain {

struct Command {
  const CLI::App* words = nullptr;
  // Whether rank 0 alone does the work. Known after the words were read.
  std::function<bool()> for_one_process;
  bool trains = false;  // a signal ends it with a checkpoint
  // `session` is null where no MPI is needed: a command for one process, in a job of one process. Returns the exit code.
  std::function<int(Session*)> run;
};

// Adds all commands to the program. `command_line`: as it was typed, for the record of a run.
std::vector<Command> declare_commands(Program& program, const std::vector<std::string>& command_line);

}  // namespace ringtrain
