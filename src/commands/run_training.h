// Does one run on the ranks of the job, from its start to its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/session.h"
#include "run/folder.h"
#include "run/start.h"

namespace ringtrain {

struct TrainingRequest {
  const Session& session;                 // the job
  const Experiment& experiment;           // the same on all ranks
  std::vector<std::string> command_line;  // for the records of the run
  bool resume = false;
  std::string resumed_folder = "";  // on rank 0: the folder to resume; "": run_folder_path() finds it
  std::int64_t pause_samples = 0;   // see TrainingLoop::pause_after()
  bool shares_node = false;         // whether other runs use the node at the same time
};

// Returned by run_training() for a run that has paused before its end.
inline constexpr int training_paused = -1;

// Returns the exit code, 0 or exit_checkpointed, or training_paused. Collective over the job. The caller ends the job
// after an error.
int run_training(const TrainingRequest& request);

}  // namespace ringtrain
