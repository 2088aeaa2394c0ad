// The point at which a resumed run continues. Rank 0 reads it from the run's folder and shares it with all ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/run_state.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "run/choices.h"
#include "run/record.h"

namespace ringtrain {

// Where a run starts. A new run has a default-constructed one: step 0, and nothing is known.
struct ResumePoint {
  // The following members are valid on all ranks.
  enum class Kind { beginning, source, own } kind = Kind::beginning;  // new, branch.from, or this run's checkpoint
  RunProgress progress;
  std::optional<BranchPoint> branch;  // where the run left its source; nothing if the run is not a branch
  std::int64_t micro_batch = 0;       // 0: not known
  RunChoices choices;                 // the plans are valid on rank 0 only
  // The following members are valid on rank 0 only.
  std::unique_ptr<Checkpoint> checkpoint;  // null: the folder has none
  std::string path;                        // path of the checkpoint
  std::optional<StopCost> stop_cost;       // measured by an earlier start of this run
};

// Collective. If `resume` is true, rank 0 reads the newest complete checkpoint in `run_dir` (only rank 0 uses
// `run_dir`). It warns about every damaged checkpoint that it skips. The caller must hold the folder's lock, so that no
// other job writes there. A branch without a checkpoint of its own begins with the checkpoint that branch.from names.
// Throws Error if that checkpoint cannot be read.
ResumePoint shared_resume_point(const Experiment& experiment, bool resume, const std::string& run_dir,
                                Communicator& communicator, Watchdog& watchdog);

}  // namespace ringtrain
