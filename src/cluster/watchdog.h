// No hangs: every rank writes its step and phase to a board in the node's shared memory; a thread ends the job when the
// own rank has not finished a step for too long, after printing what every rank of the node was doing (silent ones
// too).
#pragma once

#include <cstdint>
#include <memory>

namespace ringtrain {

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
  // Collective over MPI_COMM_WORLD. timeout_seconds <= 0: never fires. The time-out covers everything between two
  // calls of step_finished(); evaluation and checkpoints call alive() as they go.
  explicit Watchdog(double timeout_seconds);
  ~Watchdog();
  void enter(std::int64_t step, Phase phase);  // writes two words, no system call
  void alive();                                // restarts the clock
  void step_finished(std::int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringtrain
