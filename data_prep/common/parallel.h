// Threads of one process, and what the user sees of long work.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace ringtrain {

int available_threads();  // CPUs of the affinity mask

// action(index) for every index in [0, count), in about this order, each by one of `threads` threads. After an
// exception no further index begins; the first exception is thrown here.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& action);

// "examined 1,200 of 6,000 (20 %)" on stderr: one line that moves on a terminal, else a line now and then.
class ProgressLine {
 public:
  ProgressLine(std::string what, std::int64_t total, bool shown);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  void add(std::int64_t count);  // from any thread

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
