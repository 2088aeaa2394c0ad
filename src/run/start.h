// The first steps of every command that works on an experiment.
#pragma once

#include <memory>
#include <optional>

#include "cluster/communicator.h"
#include "cluster/session.h"
#include "config/reader.h"
#include "data/dataset.h"

namespace ringtrain {

// Rank 0 reads files; the others get what it read, so that all ranks see the same thing and file servers one reader.
// All are collective; `path` and `prefix` matter on rank 0, and for messages.
Experiment shared_experiment(const ExperimentArguments& arguments, Communicator& communicator);
Experiment shared_experiment(const Experiment& of_rank_0, const std::string& path, Communicator& communicator);
DatasetIndex shared_index(const std::string& prefix, Communicator& communicator);

// The data sets that an experiment trains on.
struct TrainingData {
  DatasetIndex train;
  std::optional<DatasetIndex> validation;  // none where data.validation is ""
};
TrainingData shared_data(const Experiment& experiment, Communicator& communicator);

// The data set of an index that all ranks have, in one copy for the ranks of each node (cluster/node_memory.h).
// Collective over the group.
std::shared_ptr<const Dataset> shared_dataset(const DatasetIndex& index, const RankGroup& group);

// run.threads, or what the rank's affinity mask allows; warns when it is more.
int thread_count(const Experiment& experiment, const Session& session);

// Says on rank 0 which job this is and where the group's ranks are, and warns where they share cores. Collective over
// the group. `gpu`: of this rank.
void log_job(const RankGroup& group, const std::string& launcher, const std::string& gpu);

}  // namespace ringtrain
