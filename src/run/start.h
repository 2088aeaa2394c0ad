// The first steps of every command that works on an experiment, and the instruction set on which all ranks of a job
// agree.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cluster/communicator.h"
#include "cluster/session.h"
#include "config/reader.h"
#include "data/dataset.h"

namespace ringtrain {

// Rank 0 reads the files and sends their contents to the other ranks. All ranks thus see the same contents, and a file
// server has only one reader. The shared_...() functions are collective. `path` and `prefix` matter on rank 0, and in
// messages.
Experiment shared_experiment(const ExperimentArguments& arguments, Communicator& communicator);
Experiment shared_experiment(const Experiment& of_rank_0, const std::string& path, Communicator& communicator);
DatasetIndex shared_index(const std::string& prefix, Communicator& communicator);

// The data sets that an experiment trains on.
struct TrainingData {
  DatasetIndex train;
  std::optional<DatasetIndex> validation;  // empty if data.validation is ""
};
TrainingData shared_data(const Experiment& experiment, Communicator& communicator);

// Collective over the group. Returns the data set of an index that all ranks have. The ranks of a node share one copy
// (cluster/node_memory.h).
std::shared_ptr<const Dataset> shared_dataset(const DatasetIndex& index, const RankGroup& group);

// Returns the warning that a rank computes with more threads than it has CPUs. "": it does not. `available` and `quota`
// are Session::available_threads() and Session::cpu_quota().
std::string threads_take_turns(int threads, int available, std::optional<double> quota);

// Returns run.threads, or Session::available_threads() if it is 0. Rank 0 warns if run.threads is larger. Not
// collective.
int thread_count(const Experiment& experiment, const Session& session);

// Collective over the group. Rank 0 writes which job this is and where the group's ranks are. Warns if ranks share
// cores. `gpu` is the GPU of this rank.
void log_job(const RankGroup& group, const std::string& launcher, const std::string& gpu);

// Makes all ranks of a job compute with the same CPU instruction set: the lowest that any of them has. Copies of the
// model on processors of two kinds would otherwise differ by rounding, and the comparison of the copies
// (train/replica_check.h) would end the job. Collective over the job. Call it before anything computes.
void agree_on_instruction_sets(const RankGroup& job);

// Warns, once and on rank 0 of the job, if some ranks compute with a lower instruction set than their processors have.
// The warning names the instruction set, and the rank and host whose processor has no higher one. Call this function
// only if the CPU computes.
void report_lower_instruction_sets();

}  // namespace ringtrain
