// The commands of the executable. Each returns the exit code; errors are thrown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/session.h"

namespace ringtrain {

// Exit code of a run that was asked to stop (SIGTERM, SIGUSR1, Ctrl-C) and wrote a checkpoint first.
inline constexpr int exit_checkpointed = 85;

struct ExperimentArguments {
  std::string path;
  std::vector<std::string> overrides;     // key.path=value
  std::vector<std::string> command_line;  // for the record
};

// Collective over all ranks.
int train(const ExperimentArguments& arguments, bool resume, Session& session);

// `ringtrain plan`: everything that would be, for `ranks` ranks, without training. One process.
int plan(const ExperimentArguments& arguments, std::int64_t ranks, Session& session);

struct SampleArguments {
  std::string source;  // a run's folder, a checkpoint, or an experiment (its newest run)
  std::int64_t count = 20;
  double temperature = 1;
  std::uint64_t seed = 1;
  bool new_only = false;      // names: leave out those that the data has
  std::string prompt;         // how each begins
  std::int64_t length = 400;  // running text: symbols
};
int sample(const SampleArguments& arguments);

}  // namespace ringtrain
