// Elapsed time, and a thread that works by the clock. The clock is monotonic, so setting the machine's date does not
// change measured durations. The clock starts at the same moment for all processes of a machine, so the ranks of a node
// can compare their times.
#pragma once

#include <time.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ringtrain {

// A call takes about 20 ns, because it needs no system call (vDSO).
inline double now_seconds() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// A thread that does something again and again until it is stopped.
class Ticker {
 public:
  Ticker() = default;
  ~Ticker() { stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Calls `work` every `seconds` seconds, in a thread. `passed` is the time since the last call in seconds. If it is
  // much longer than expected, the whole process was suspended (Ctrl-Z, Slurm's suspend). Of such a time only 4 ticks
  // count, or 1 s if that is more. `purpose` is that of start_thread() (base/system_limits.h), which throws Error.
  void start(const std::string& purpose, double seconds, std::function<void(double passed)> work);
  void stop();  // waits for the end of the thread; does nothing if there is none

 private:
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ringtrain
