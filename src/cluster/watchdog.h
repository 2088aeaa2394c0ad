// No hangs: every rank of a group writes its step and phase to a board in the node's shared memory. A thread sees when
// the own rank has not finished a step for too long. It prints what every rank of the node was doing, silent ones too,
// and ends the job; a rank whose process has died ends the job, too. Where the group may fail alone
// (RankGroup::ends_job() is false) it lets the group's run fail. If the run is still there after the same time again,
// or a rank has died, the processes of the group end (leave_job()), and the launcher decides about the others.
#pragma once

#include <cstdint>
#include <memory>

namespace ringtrain {

class RankGroup;

// What a rank is doing in its step.

enum class Phase : std::uint32_t {
  start,
  input,
  forward,
  backward,
  communication,
  update,
  evaluation,
  checkpoint,
  finished
};
const char* phase_name(Phase phase);

class Watchdog {
 public:
  // Collective over the group. timeout_seconds <= 0: never fires. The time-out covers everything between two calls of
  // step_finished(); evaluation and checkpoints call alive() as they go.
  Watchdog(const RankGroup& group, double timeout_seconds);
  ~Watchdog();
  // The death of these ranks, [begin, end) of the group, ends nothing: the others notice it by themselves.
  void spare(int begin, int end);
  void enter(std::int64_t step, Phase phase);  // writes two words, no system call
  void alive();                                // restarts the clock
  void step_finished(std::int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
