// Runs work on the threads of one process, and shows the user its progress.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace ringtrain {

// Calls action(index) for every index in [0, count), roughly in ascending order, on `threads` threads. After an
// exception no further index begins. The first exception is thrown here. If the system refuses threads, fewer do the
// work, after one warning that names the limit.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& action);

// Returns how many of `threads` threads worked: fewer if the system has refused parallel_for() some of them.
int threads_granted(int threads);

// Prints "examined 1,200 of 6,000 (20 %), 30 s left" to stderr: one changing line on a terminal, otherwise a line every
// 20 s.
class ProgressLine {
 public:
  ProgressLine(std::string what, std::int64_t total, bool shown);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void add(std::int64_t count);  // may be called from any thread

 private:
  void print(std::int64_t done);
  std::string what_;
  std::int64_t total_;
  bool shown_, terminal_, printed_ = false;
  double start_seconds_;
  std::atomic<double> next_seconds_;
  std::atomic<std::int64_t> done_ = 0;
  std::mutex printing_;
};

}  // namespace ringtrain
