#include "parallel/pass_order.h"

#include <algorithm>

#include "parallel/stage_passes.h"

namespace ringtrain {
namespace {

class LocalOrder : public PassOrder {
 public:
  void run(std::int64_t micro_batches, const PassCalls& calls) override {
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      calls.input(i);
      calls.forward(i);
      calls.backward(i);
    }
  }
};

}  // namespace

std::vector<StageEvent> stage_events(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                                     std::int64_t micro_batches) {
  const std::int64_t ahead = schedule == "gpipe" ? micro_batches : std::min(stages - 1 - stage, micro_batches);
  std::vector<StageEvent> events;
  std::int64_t forward = 0, backward = 0;
  while (forward < ahead) events.push_back({false, forward++});
  while (backward < micro_batches) {
    if (forward < micro_batches) events.push_back({false, forward++});
    events.push_back({true, backward++});
  }
  return events;
}

std::int64_t stage_slots(const std::string& schedule, std::int64_t stage, std::int64_t stages,
                         std::int64_t micro_batches) {
  return schedule == "gpipe" ? micro_batches : std::min(stages - stage, micro_batches);
}

double bubble_share(std::int64_t stages, std::int64_t micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

std::unique_ptr<PassOrder> make_pass_order(StageRanks* ranks, Program& program, const std::string& schedule,
                                           std::int64_t slots) {
  if (ranks == nullptr) return std::make_unique<LocalOrder>();
  return make_stage_passes(*ranks, program, schedule, slots);
}

}  // namespace ringtrain
