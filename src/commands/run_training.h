// Does one run on the ranks of a group, from its start to its end. `train` and the trials of a study use it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cluster/device_choice.h"
#include "cluster/session.h"
#include "run/folder.h"
#include "run/start.h"

namespace ringtrain {

struct TrainingRequest {
  const Session& session;                           // the whole job; knows this process's threads and the launcher
  const RankGroup& group;                           // the ranks that train
  const Experiment& experiment;                     // the same on all ranks
  std::function<TrainingData(Communicator&)> data;  // collective over the group
  std::vector<std::string> command_line;            // for the records of the run
  bool resume = false;
  std::string resumed_folder = "";       // on rank 0: the folder to resume; "": run_folder_path() finds it
  const RunFolder* folder = nullptr;     // on rank 0 of a study's trial: a locked folder; null: the run makes its own
  const NodeDevices* devices = nullptr;  // for a trial: the node's GPUs; null: the group is the whole job
  std::int64_t pause_samples = 0;        // see TrainingRun::pause_after()
};

// Returned by run_training() for a run that has paused before its end.
inline constexpr int training_paused = -1;

// Returns the exit code, 0 or exit_checkpointed, or training_paused. Collective over the group. An error is thrown on
// every rank of the group, after all work of the run has ended. If the group fails alone (RankGroup::ends_job()), it
// must not be used again.
int run_training(const TrainingRequest& request);

}  // namespace ringtrain
