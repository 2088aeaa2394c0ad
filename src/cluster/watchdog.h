// Ends a job that hangs. Every rank of a group writes its step and phase to a board in the node's shared memory. A
// thread of each rank notices if its rank has not finished a step in time. It prints the phase of every rank of the
// node and ends the job. The death of a rank's process ends the job, too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ringtrain {

class RankGroup;

// The phase of a rank within its step.
enum class Phase : std::uint32_t {
  start,
  input,
  forward,
  backward,
  stage_wait,  // waits for another stage of a pipeline
  communication,
  update,
  evaluation,
  checkpoint,
  finished
};
const char* phase_name(Phase phase);

class Watchdog {
 public:
  // Collective over the group. With timeout_seconds <= 0 the watchdog never fires. Otherwise the job also ends if not
  // all ranks come here within this time. The time-out covers everything between two calls of step_finished().
  // Evaluations and checkpoints call alive() while they run.
  Watchdog(const RankGroup& group, double timeout_seconds);
  // Collective. Waits for the other ranks, unless an exception is in flight.
  ~Watchdog();
  void enter(std::int64_t step, Phase phase);  // writes two words; makes no system call
  void alive();                                // restarts the clock
  void step_finished(std::int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Ends a job whose start hangs. While MPI starts and in the first collectives, the watchdog does not run yet.
// Nothing else would then notice that a process of the job hangs or is missing. The guard limits the time between
// its construction and its destruction. When the limit has passed, it prints a message and ends the job with exit
// code 86. Time in which the whole process is suspended does not count. The guard does nothing if the job has only
// one process.
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
