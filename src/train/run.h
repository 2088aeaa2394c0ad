// The commands of the executable. Each returns the exit code; errors are thrown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/session.h"
#include "train/checkpoint_source.h"

namespace ringtrain {

// Exit code of a run that was asked to stop (SIGTERM, SIGUSR1, Ctrl-C) and wrote a checkpoint first.
inline constexpr int exit_checkpointed = 85;

struct ExperimentArguments {
  std::string path;
  std::vector<std::string> overrides;     // key.path=value
  std::vector<std::string> command_line;  // for the record
  std::string device;                     // `plan` only: a GPU's name or description; empty: this machine's CPU
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

struct ExportArguments {
  ExperimentArguments experiment;  // its path is a source as for sample
  WhichCheckpoint which = WhichCheckpoint::best_or_newest;
  std::string out, dtype = "fp32";  // fp32 | fp16 | bf16
};
int export_weights(const ExportArguments& arguments);

struct ImportArguments {
  std::string weights;
  ExperimentArguments experiment;
  std::string out;  // a checkpoint; empty: a new run's folder
};
int import_weights(const ImportArguments& arguments);

struct EvaluateArguments {
  ExperimentArguments experiment;  // its path is a source as for sample
  std::string weights;             // a safetensors file instead of the checkpoint
  std::string json;                // the result as a file
  std::string logits;              // a safetensors file of the first `samples` samples
  std::int64_t samples = 16;
};
// Collective over all ranks.
int evaluate(const EvaluateArguments& arguments, Session& session);

}  // namespace ringtrain
