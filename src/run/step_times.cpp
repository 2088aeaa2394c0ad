#include "run/step_times.h"

#include <array>

namespace ringtrain {

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  input += other.input;
  forward += other.forward;
  backward += other.backward;
  communication += other.communication;
  update += other.update;
  server += other.server;
  return *this;
}

std::vector<StepTimes> gather_times(const StepTimes& mine, Communicator& communicator) {
  const std::array<float, 6> own = {static_cast<float>(mine.input),    static_cast<float>(mine.forward),
                                    static_cast<float>(mine.backward), static_cast<float>(mine.communication),
                                    static_cast<float>(mine.update),   static_cast<float>(mine.server)};
  const bool is_root = communicator.rank() == 0;
  std::vector<float> all(is_root ? own.size() * static_cast<std::size_t>(communicator.size()) : 0);
  communicator.gather(own, all, 0);
  std::vector<StepTimes> times;
  for (std::size_t at = 0; at < all.size(); at += own.size())
    times.push_back({.input = all[at],
                     .forward = all[at + 1],
                     .backward = all[at + 2],
                     .communication = all[at + 3],
                     .update = all[at + 4],
                     .server = all[at + 5]});
  return times;
}

}  // namespace ringtrain
