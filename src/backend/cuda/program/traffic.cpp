#include "backend/cuda/program/traffic.h"

namespace ringtrain::cuda {

Traffic traffic_of(const Schedule& schedule) {
  using Part = Schedule::Part;
  Traffic t;
  for (const Schedule::Segment& segment : schedule.segments())
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      const Command& command = schedule.commands()[i];
      (segment.part == Part::forward    ? t.forward_bytes
       : segment.part == Part::backward ? t.backward_bytes
                                        : t.weights_bytes) += command.bytes;
      if (segment.part != Part::weights) t.flops += command.flops;
    }
  return t;
}

LeastSeconds least_seconds_of(const Schedule& schedule, const Rates& rates) {
  LeastSeconds least;
  for (const Schedule::Segment& segment : schedule.segments())
    for (std::size_t i = segment.begin; i < segment.end; ++i) {
      const Command& command = schedule.commands()[i];
      (segment.part == Schedule::Part::weights ? least.weights : least.pass) +=
          bound_seconds(command.flops, command.bytes, rates);
    }
  return least;
}

}  // namespace ringtrain::cuda
