// A thread that does something again and again until it is stopped.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ringtrain {

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
