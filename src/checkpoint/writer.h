// Writes the checkpoints of a run in the background.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "cluster/slow_work.h"
#include "run/stop_cost.h"

namespace ringtrain {

// Ends what a killed process had begun in a run's folder: removes the checkpoints' temporary files, and makes best.h5 a
// copy of the checkpoint of `best_step`, unless it is one already. No step: best.h5 stays as it is. The caller holds
// the folder's lock. Throws Error if best.h5 cannot be written.
void finish_interrupted_write(const std::string& run_dir, std::optional<std::int64_t> best_step,
                              const Progress& progress = {});

// Writes checkpoints in a background thread while training continues. Only rank 0 has one. The thread calls no MPI.
class CheckpointWriter {
 public:
  CheckpointWriter(std::string run_dir, std::int64_t keep);
  ~CheckpointWriter();  // waits for the write to end
  // Waits for the previous write and throws its error, if any. Then starts writing. A checkpoint with a value that is
  // not finite counts as a failed write.
  //
  // After success, old checkpoints are deleted until `keep` are left. best.h5 and kept_steps() are not deleted.
  // Checkpoints of later steps are also deleted: a resumed run did not use them, because they were damaged. If `best`
  // is true, best.h5 is written too.
  void start(Checkpoint checkpoint, bool best);
  void finish();                   // waits; throws the error of the write
  SlowWork& work();                // the current write, for wait_together()
  CheckpointCost slowest() const;  // the slowest of all writes; 0 bytes: none. Valid if work() has ended
  bool failed() const;             // the last write failed; never blocks. start() and finish() throw its error.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
