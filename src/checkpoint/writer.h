// Writes the checkpoints of a run in the background. SlowWork is the thread in which rank 0 writes or reads one, while
// other ranks wait or train.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "cluster/communicator.h"
#include "cluster/watchdog.h"
#include "run/run_end.h"

namespace ringtrain {

// Slow work of one rank for which other ranks wait, such as writing or reading a large file. It runs in a thread of its
// own and reports its progress. As long as it makes progress, the watchdogs of all ranks do not fire. If it makes no
// progress for the watchdog's time-out, they end the job.
class SlowWork {
 public:
  SlowWork() = default;
  ~SlowWork();  // waits for the end of the work
  SlowWork(const SlowWork&) = delete;
  SlowWork& operator=(const SlowWork&) = delete;

  // Calls finish() for the previous work. `work` must not call MPI.
  void start(std::function<void(const Progress&)> work);
  bool ended_within(double seconds);             // also true if nothing was started
  std::int64_t bytes() const { return bytes_; }  // bytes of all progress so far
  bool failed() const { return failed_; }        // the next finish() will throw; never blocks
  void finish();                                 // waits for the end; throws what the work threw

 private:
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool running_ = false;      // guarded by mutex_
  std::exception_ptr error_;  // set by the thread, read after join()
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<bool> failed_{false};
};

// Waits for the work of one rank, in phase `checkpoint` of this step. `work` is null on all other ranks. A call of
// finish() then throws the error of the work, if any. Collective.
void wait_together(SlowWork* work, Communicator& communicator, Watchdog& watchdog, std::int64_t step);

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
  void finish() { work_.finish(); }   // waits; throws the error of the write
  SlowWork& work() { return work_; }  // the current write, for wait_together()
  // The slowest of all writes; 0 bytes: none. Valid if work() has ended.
  CheckpointCost slowest() const { return slowest_; }
  // The last write failed; never blocks. start() and finish() throw its error.
  bool failed() const { return work_.failed(); }

 private:
  const std::string run_dir_;
  const std::int64_t keep_;
  CheckpointCost slowest_;  // set by the thread, read when the work has ended
  SlowWork work_;
};

}  // namespace ringtrain
