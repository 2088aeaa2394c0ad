// Slow work of one rank for which other ranks wait, such as writing or reading a large file. It runs in a thread of its
// own and reports its progress. As long as it makes progress, the watchdogs of all ranks do not fire. If it makes no
// progress for the watchdog's time-out, they end the job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "cluster/communicator.h"
#include "cluster/watchdog.h"

namespace ringtrain {

// Called with the bytes that were written or read since the last call.
using Progress = std::function<void(std::int64_t bytes)>;

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

}  // namespace ringtrain
