// The commands of `ringtrain`. Begin reading here. Each command is a function that takes its arguments as a struct,
// returns the exit code, and throws Error. command_table.cpp declares the command lines, and every command has a file
// of its own (weights.cpp has both export and import). train.cpp does a run from its start to its end, and
// training_loop.h has the loop over its steps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/find_checkpoint.h"
#include "cluster/session.h"
#include "config/reader.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ringtrain {

class CommandLine;

struct TrainArguments {
  ExperimentArguments experiment;
  bool resume = false;
  std::vector<std::string> command_line;  // for the records of the run
  std::int64_t pause_after = 0;           // samples after which the run pauses, with a checkpoint; 0: it does not pause
  std::string report;                     // file that gets how the run has ended (study/trial_record.h); empty: none
  bool shares_node = false;  // other runs share the node, so the energy of the node is not that of this run
};
// Trains a model. All ranks of the job call it together.
int train(const TrainArguments& arguments, Session& session);

struct PlanArguments {
  ExperimentArguments experiment;  // its path may be a run's folder
  std::int64_t ranks = 1;
  int threads = 1;                          // per rank, if run.threads is 0
  std::optional<double> cpu_quota;          // as Session::cpu_quota()
  bool for_this_job = true;                 // whether this job has as many ranks as the plan
  std::int64_t ranks_here = 1;              // how many of the ranks this node has
  std::int64_t shared_cores = 0;            // above 0: `threads` assumes that the ranks share these cores of this node
  std::string device;                       // name or description of a GPU; empty: this machine's CPU
  bool all = false;                         // also prints keys without effect
  std::vector<std::string> preflight = {};  // files of `bench step --json`, which say how long a step takes
  std::string save_plans;                   // folder for cuDNN's plans for `device`; empty: none are saved
};
// Prints everything about a run on a number of ranks, without training. It runs in one process.
int plan(const PlanArguments& arguments);

struct SampleArguments {
  ExperimentArguments source;  // its path: a run's folder, a checkpoint, or an experiment (its newest run)
  std::int64_t count = 20;
  double temperature = 1;
  std::uint64_t seed = 1;
  bool new_only = false;    // names: leave out names that are in the data, and repeated names
  std::string prompt;       // the beginning of each name or text
  std::int64_t length = 0;  // running text: number of symbols; 0: not given
};
inline constexpr std::int64_t default_sample_length = 400;
// Prints names or text that the model invents. It runs in one process.
int sample(const SampleArguments& arguments);

struct ExportArguments {
  ExperimentArguments experiment;  // its path is a source as in SampleArguments
  WhichCheckpoint which = WhichCheckpoint::best_or_newest;
  std::string out, dtype = "fp32";  // fp32 | fp16 | bf16
  bool force = false;               // overwrites `out`
};
// Writes the weights of a checkpoint to a file that other programs read. It runs in one process.
int export_weights(const ExportArguments& arguments);

struct ImportArguments {
  std::string weights;
  ExperimentArguments experiment;
  std::string out;           // a checkpoint; empty: a new run's folder
  bool force = false;        // overwrites `out`
  std::int64_t classes = 0;  // above 0: the last layer is initialised anew with this number of classes
};
// Makes a checkpoint from a file of weights. It runs in one process.
int import_weights(const ImportArguments& arguments);

struct EvaluateArguments {
  ExperimentArguments experiment;  // its path is a source as in SampleArguments
  std::string weights;             // a safetensors file instead of the checkpoint
  std::string json;                // file for the result
  std::string logits;              // safetensors file for the first `samples` samples
  std::int64_t samples = 16;
};
// Evaluates a checkpoint on the validation data. All ranks of the job call it together.
int evaluate(const EvaluateArguments& arguments, Session& session);

struct BenchArguments {
  std::vector<std::string> kinds;  // some of start, comm, input, step, split, utilisation, components
  ExperimentArguments experiment;  // without a path, comm uses the default experiment and utilisation a small CNN
  std::string json;                // file for the result; its results of other kinds stay
  double seconds = 10;             // time of each kind of measurement, approximately
  double link_gbit = 0;            // rated bandwidth of the network between nodes; 0: not stated
  double wanted = 0;               // samples per second that a node should load; 0: what measured steps use
  double limit_gib = 0;            // utilisation: memory of a rank; 0: memory.limit_gib, or the free memory
  std::int64_t largest = 0;        // utilisation: largest batch of a rank; 0: the largest that fits
  std::string csv;                 // split, utilisation or components: file for the table
};
// Measures parts of training. All ranks of the job call it together. Returns the exit code.
int bench(const BenchArguments& arguments, Session& session);

struct PredictArguments {
  ExperimentArguments experiment;
  std::string ranks = "1..4096";              // "1..4096": doubled from 1 on; "1,2,48": these numbers
  std::vector<std::string> preflight, check;  // files to fit to, and files to compare with
  std::int64_t ranks_per_node = 0;            // 0: as measured
  std::int64_t cores_per_node = 0;            // 0: as measured
  std::int64_t rows_per_rank = 0;             // samples of a rank in weak scaling; 0: as measured
  double latency_us = 0, link_gbit = 0;       // those of a network that was not measured; 0: not stated
  std::string csv, json;
};
// Predicts the speed on other numbers of ranks. It runs in one process.
int predict(const PredictArguments& arguments);

struct StudyArguments {
  ExperimentArguments study;  // its file, and keys of the experiment that are the same in all trials
  bool plan_only = false;
  bool resume = false;
  std::vector<std::string> command_line;  // for the records of the runs
  std::int64_t share = 0, shares = 0;     // the K and N of --index K/N; shares = 0: all trials
  std::vector<std::string> preflight;     // files of `bench step --json`, which say how long a step takes
  int threads = 1;                        // for the plan: per rank, if run.threads is 0
  std::string device;                     // as in PlanArguments
  std::int64_t ranks = 0;                 // ranks that work at the same time; 0: all that there are
  std::string launcher;                   // see TrialLauncher
};
// Checks every trial of a study and prints its plan. It runs in one process.
int plan_study(const StudyArguments& arguments);
// Starts the trials and waits for their ends. It runs in one process.
int study(const StudyArguments& arguments);

// A row of the table of the commands, with the ranks that do its work.
struct Command {
  const CLI::App* words = nullptr;  // the command's part of the command line
  bool for_one_process = false;     // whether rank 0 alone does the work
  bool trains = false;              // a signal ends the command with a checkpoint
  // Does the work and returns the exit code. `session` is null if the command needs only one process and the job has
  // only one, because MPI is then not started.
  std::function<int(Session*)> run;
};

// Adds all commands to the program. `command_line` is what the user has typed, for the record of a run.
std::vector<Command> declare_commands(CommandLine& program, const std::vector<std::string>& command_line);

}  // namespace ringtrain
