// Ends a job whose start hangs. While MPI starts and in the first collectives, the watchdog does not run yet. Nothing
// else would then notice that a process of the job hangs or is missing.
#pragma once

#include <memory>
#include <string>

namespace ringtrain {

// Limits the time between its construction and its destruction. When the limit has passed, it prints a message and ends
// the job with exit code 86. Time in which the whole process is suspended does not count. The guard does nothing if the
// job has only one process.
class StartGuard {
 public:
  // `what` begins the message, e.g. "MPI could not start". `seconds` is the limit. 0 or less: the limit of a start,
  // which is 600 s or RINGTRAIN_START_SECONDS. Throws Error if that variable is not a positive number.
  explicit StartGuard(std::string what, double seconds = 0);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
