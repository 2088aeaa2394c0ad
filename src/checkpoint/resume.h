// The point at which a resumed run continues, which rank 0 reads from the run's folder and shares with all ranks. Also
// checks what may change between a checkpoint and the run that continues from it, and tells the user about changes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/run_state.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "run/machine.h"
#include "run/plan.h"
#include "run/run_record.h"

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

  // Returns the step after which the run's own steps begin.
  std::int64_t first_step() const { return branch ? branch->position.step : 0; }
};

// Collective. If `resume` is true, rank 0 reads the newest complete checkpoint in `run_dir` (only rank 0 uses
// `run_dir`). It warns about every damaged checkpoint that it skips. If all are damaged, it throws Error. The caller
// must hold the folder's lock, so that no other job writes there. A branch without a checkpoint of its own begins with
// the checkpoint that branch.from names. Throws Error if that checkpoint cannot be read.
ResumePoint shared_resume_point(const Experiment& experiment, bool resume, const std::string& run_dir,
                                Communicator& communicator, Watchdog& watchdog);

// Returns the experiment that wrote the checkpoint at `path`. Throws Error if this version does not understand it.
Experiment experiment_of(const Checkpoint& checkpoint, const std::string& path);

// A key whose values differ between two experiments.
struct KeyChange {
  std::string_view key;
  std::string was, is;
  bool decides_result = false;  // false: only speed, place or records change (decides_what_is_learned())
  bool operator==(const KeyChange&) const = default;
};
// Returns a text such as "learning_rate.base: 0.001 -> 0.002".
std::string to_string(const KeyChange& change);
// Returns a text such as "seed is 2, was 1; model.hidden is 24, was 16".
std::string to_string(const std::vector<KeyChange>& changes);

// Returns every key that differs, in the order of the schema, except run.dir and run.id, which only name the folder.
std::vector<KeyChange> changed_keys(const Experiment& before, const Experiment& now);

// Throws Error if the weights, the optimizer's state or the position of the checkpoint would have another meaning in
// this run. Examples are another model, data set, seed or batch, or another form of the optimizer's state. The message
// names every such key with both values.
void check_belongs(const Checkpoint& checkpoint, const std::string& path, const RunPlan& plan);

// Makes the check of check_belongs() for the checkpoint (or its header) with which a branch begins (branch.from). Here
// branch.*, batch.global and batch.largest may differ, but batch.global must fit branch.batch_factor, batch.schedule
// must be the same, and the number of workers is not checked.
void check_source(const Checkpoint& source, const RunPlan& plan);

// Returns a sentence for the user if an update that is already finished would have had another learning rate in this
// run than in the experiment `before`. The sentence contains the rates of the last finished and of the next step. It
// counts steps of the schedule, which have the first batch of the run. Returns "" if all rates so far are the same.
// With AdaScale, `scale_invariant_steps` is the number of AdaScale's steps so far.
std::string changed_rate(const Experiment& before, const RunPlan& plan, const Position& position,
                         double scale_invariant_steps = 0);

}  // namespace ringtrain
