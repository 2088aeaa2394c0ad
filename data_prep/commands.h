// The commands of ringtrain-data, and helpers that all of them share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "data_prep/common/ranks.h"

namespace ringtrain {

struct DataCommand {
  const CLI::App* words = nullptr;
  bool for_all_ranks = false;            // false: rank 0 does all the work
  std::function<int(const Ranks&)> run;  // returns the exit code
};

// Returns the one operand. Throws Error if there is none, or more than one.
std::string one_input(const CLI::App& command, const std::vector<std::string>& words);

// These functions add options that several conversions have.
void add_validation(CLI::App& command, std::optional<double>& share, const std::string& help);
template <class Options>
void add_file_options(CLI::App& command, Options& options, const std::string& shards_help) {
  command.add_option("--out", options.out, "folder and first part of the files' names")->type_name("PREFIX");
  command.add_option("--shards", options.shards, "files per split; does not change the data set [" + shards_help + "]")
      ->type_name("N")
      ->check(whole_number(1));
  command.add_option("--seed", options.seed, "of the split and of the order on disk [1]")
      ->type_name("N")
      ->check(whole_number(0));
  command.add_option("--license", options.license, "stored in the files")->type_name("TEXT");
  command.add_flag("--force", options.force, "overwrites files");
}

// Defines the commands of ringtrain-data about images.
DataCommand declare_images(CommandLine& program);
DataCommand declare_import(CommandLine& program);
DataCommand declare_idx(CommandLine& program);

// Defines the commands of ringtrain-data about text, and the command that checks any data set.
DataCommand declare_names(CommandLine& program);
DataCommand declare_text(CommandLine& program);
DataCommand declare_verify(CommandLine& program);

}  // namespace ringtrain
