// No hangs before the watchdog stands: in MPI's start and in the collectives up to the watchdog's own, nobody else sees
// that a process of the job hangs or never came.
#pragma once

#include <memory>
#include <string>

namespace ringtrain {

// From its construction to its destruction this process must not take longer than a limit, or it says so and ends the
// job with exit code 86. The time in which the whole process is suspended does not count. A process that has not been
// started by a launcher is left alone.
class StartGuard {
 public:
  // seconds <= 0: the limit of a start, 600 or what RINGTRAIN_START_SECONDS says. `what` is done meanwhile, e.g.
  // "MPI could not start".
  explicit StartGuard(std::string what, double seconds = 0);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
