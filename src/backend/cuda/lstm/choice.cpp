// Chooses the calls of cuDNN that compute the LSTM layers: choose_lstm_plans() of program.h.
#include <memory>

#include "backend/cuda/lstm/program.h"
#include "base/error.h"

namespace ringtrain::cuda {

namespace {

// Runs calls on random numbers, to be timed. The first run allocates the memory, and all ways of a site share it.
class Trial {
 public:
  void run(Device& device, Stream stream, const std::vector<RnnOperation>& calls) {
    std::vector<const RnnPlan*> plans;
    for (const RnnOperation& call : calls) plans.push_back(device.plan(call));
    take(device, plans, stream);
    for (const RnnPlan* plan : plans)
      device.run_forward(*plan,
                         {.x = x_.data(),
                          .weights = weights_.data(),
                          .y = y_.data(),
                          .workspace = workspace_.data(),
                          .reserve = reserve_.data()},
                         stream);
    if (!calls.front().training) return;
    for (const RnnPlan* plan : plans)
      device.run_backward(*plan,
                          {.x = x_.data(),
                           .weights = weights_.data(),
                           .y = y_.data(),
                           .dy = dy_.data(),
                           .dx = dx_.data(),
                           .dweights = d_weights_.data(),
                           .workspace = workspace_.data(),
                           .reserve = reserve_.data()},
                          stream);
  }

 private:
  // Returns whether the memory is new.
  static bool grow(Device& device, DeviceMemory& memory, std::int64_t bytes) {
    if (memory.bytes() >= bytes) return false;
    memory = DeviceMemory();
    memory = DeviceMemory(device, bytes, "timing of recurrent calls");
    return true;
  }

  void take(Device& device, const std::vector<const RnnPlan*>& plans, Stream stream) {
    const auto grow_random = [&](DeviceMemory& memory, std::int64_t bytes, Type type) {
      if (grow(device, memory, bytes)) fill_random(device, memory.data(), bytes, type, stream);
    };
    for (const RnnPlan* plan : plans) {
      const RnnOperation& o = plan->operation();
      const std::int64_t row = o.length * o.batch * bytes_of(o.type);
      grow_random(x_, row * o.input, o.type);
      grow_random(weights_, plan->weight_bytes(), o.type);
      grow(device, y_, row * o.hidden);
      grow(device, workspace_, plan->workspace_bytes());
      grow(device, reserve_, plan->reserve_bytes());
      if (!o.training) continue;
      grow_random(dy_, row * o.hidden, o.type);
      grow_random(d_weights_, plan->weight_bytes(), o.type);
      grow(device, dx_, row * o.input);
    }
  }

  DeviceMemory x_, y_, dx_, dy_, weights_, d_weights_, workspace_, reserve_;
};

// When nothing is timed, the way with the fewest bytes is taken. So the guess gets fewer bytes here than other ways.
// The guess is cuDNN's standard algorithm, which is good for any shape, in one call, which overlaps the layers.
FusionSite::Way make_way(std::string name, std::vector<RnnOperation> calls, bool guess, std::shared_ptr<Trial> trial) {
  return {.name = std::move(name),
          .recurrent = calls,
          .bytes = guess ? 1.0 : 2.0,
          .trial = [calls, trial](Device&) -> std::vector<TrialPart> {
            return {{.what = "",
                     .run = [calls, trial](Device& device, Stream stream) { trial->run(device, stream, calls); }}};
          }};
}

RnnOperation with_algorithm(RnnOperation operation, RnnAlgorithm algorithm) {
  operation.algorithm = algorithm;
  return operation;
}

RnnOperation fastest_algorithm(Device& device, FusionTable& table, const RnnOperation& layer, const std::string& name) {
  FusionSite site{.name = name};
  const auto trial = std::make_shared<Trial>();
  for (const RnnAlgorithm a : rnn_algorithms)
    if (a != RnnAlgorithm::standard)
      site.ways.push_back(make_way(rnn_algorithm_name(a), {with_algorithm(layer, a)}, false, trial));
  const RnnOperation standard = with_algorithm(layer, RnnAlgorithm::standard);
  site.ways.push_back(make_way(rnn_algorithm_name(standard.algorithm), {standard}, true, trial));
  return site.ways[table.choose(device, site)].recurrent.front();
}

std::vector<RnnOperation> calls_per_layer(Device& device, FusionTable& table, const RnnOperation& stack) {
  std::vector<RnnOperation> calls;
  for (std::int64_t layer = 0; layer < stack.layers; ++layer) {
    RnnOperation one = stack;
    one.layers = 1;
    if (layer > 0) one.input = stack.hidden;
    calls.push_back(fastest_algorithm(device, table, one, cat("lstm layer ", layer)));
  }
  return calls;
}

std::vector<RnnOperation> fastest_calls(Device& device, FusionTable& table, const RnnOperation& stack, bool joinable) {
  std::vector<RnnOperation> per_layer = calls_per_layer(device, table, stack);
  if (!joinable || stack.layers == 1) return per_layer;
  FusionSite site{.name = "lstm layers"};
  const auto trial = std::make_shared<Trial>();
  for (const RnnAlgorithm a : rnn_algorithms)
    site.ways.push_back(make_way(cat("one call, ", rnn_algorithm_name(a)), {with_algorithm(stack, a)},
                                 a == RnnAlgorithm::standard, trial));
  site.ways.push_back(make_way("a call per layer", std::move(per_layer), false, trial));
  return site.ways[table.choose(device, site)].recurrent;
}

}  // namespace

std::vector<const RnnPlan*> choose_lstm_plans(Device& device, FusionTable& table, const RnnOperation& stack,
                                              bool joinable) {
  std::vector<const RnnPlan*> plans;
  for (const RnnOperation& call : fastest_calls(device, table, stack, joinable)) plans.push_back(device.plan(call));
  return plans;
}

}  // namespace ringtrain::cuda
