// Where a resumed run goes on: what rank 0 reads in the folder of the run, and what all ranks need of it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/snapshot.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "run/choices.h"
#include "run/record.h"

namespace ringtrain {

// A new run begins with a default one: step 0, nothing known.
struct ResumePoint {
  // On all ranks.
  enum class Kind { beginning, source, own } kind = Kind::beginning;  // where from: fresh weights, branch.from, its own
  RunProgress progress;
  std::optional<BranchPoint> branch;  // of a branch
  std::int64_t micro_batch = 0;       // 0: not known
  bool knows_stop_cost = false;
  RunChoices choices;  // the plans are rank 0's
  // On rank 0.
  std::unique_ptr<Checkpoint> checkpoint;  // null: the folder has none
  std::string path;                        // of the checkpoint
  std::optional<StopCost> stop_cost;       // as an earlier start measured it
};

// Collective. `resume`: rank 0 reads the newest whole checkpoint in `run_dir` (which matters there only), with a
// warning for every damaged one that it passes over; the caller holds the folder's lock, so that no other job writes
// there meanwhile. A branch that has none of its own begins with the checkpoint that branch.from names. Throws Error
// where that cannot be read.
ResumePoint shared_resume_point(const Experiment& experiment, bool resume, const std::string& run_dir,
                                Communicator& communicator, Watchdog& watchdog);

}  // namespace ringtrain
