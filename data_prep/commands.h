// The commands of ringtrain-data.
#pragma once

#include <functional>

#include "cli/command_line.h"
#include "data_prep/common/ranks.h"

namespace ringtrain {

struct DataCommand {
  const CLI::App* words = nullptr;
  bool for_all_ranks = false;            // false: rank 0 does all the work
  std::function<int(const Ranks&)> run;  // returns the exit code
};

// Defines the commands of ringtrain-data about images.
DataCommand declare_images(CommandLine& program);
DataCommand declare_import(CommandLine& program);
DataCommand declare_idx(CommandLine& program);

// Defines the commands of ringtrain-data about text, and the command that checks any data set.
DataCommand declare_names(CommandLine& program);
DataCommand declare_text(CommandLine& program);
DataCommand declare_verify(CommandLine& program);

}  // namespace ringtrain
