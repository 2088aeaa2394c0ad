#include "checkpoint/stage_parts.h"

#include <algorithm>

#include "run/split.h"

namespace ringtrain {
namespace {

constexpr int kParts = 3;  // message tag

std::int64_t elements_of(const ParameterTable& parameters, Elements elements) {
  return elements == Elements::all ? parameters.size() : parameters.trained();
}

// Calls body(whole, part, count) for every tensor, with its offset in the whole model and in the part.
template <class Body>
void for_each_tensor(const RunPlan& plan, const ModelPart& part, Elements elements, const Body& body) {
  for (const Parameter& p : part.parameters.all())
    if (elements == Elements::all || p.kind != ParameterKind::statistic)
      body(plan.parameters.find(p.name).offset, p.offset, p.count);
}

void receive_from(StageRanks& ranks, std::span<float> values, int rank) {
  ranks.links().receive(std::as_writable_bytes(values), rank, kParts)->finish();
}
void send_to(StageRanks& ranks, std::span<const float> values, int rank) {
  ranks.links().send(std::as_bytes(values), rank, kParts)->finish();
}

bool is_root(const StageRanks& ranks) {
  return ranks.replica() == 0 && ranks.stage() == 0;
}

struct StatePlace {
  std::int64_t begin = 0, size = 0;  // floats, in a row that has the state of all layers
};
StatePlace state_place(const RunPlan& plan, int stage) {
  StatePlace place;
  for (int s = 0; s < stage; ++s) place.begin += part_of(plan, s).graph.state_size();
  place.size = part_of(plan, stage).graph.state_size();
  return place;
}

}  // namespace

std::vector<float> gather_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine,
                                Elements elements) {
  if (!is_root(ranks)) {
    if (ranks.replica() == 0) send_to(ranks, mine, 0);
    return {};
  }
  std::vector<float> whole(static_cast<std::size_t>(elements_of(plan.parameters, elements)));
  for (int stage = 0; stage < ranks.stages(); ++stage) {
    const ModelPart part = part_of(plan, stage);
    std::vector<float> theirs(static_cast<std::size_t>(elements_of(part.parameters, elements)));
    if (stage == 0)
      std::ranges::copy(mine, theirs.begin());
    else
      receive_from(ranks, theirs, ranks.rank_of(0, stage));
    for_each_tensor(plan, part, elements, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      std::copy_n(theirs.begin() + from, count, whole.begin() + to);
    });
  }
  return whole;
}

void scatter_parts(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine,
                   Elements elements) {
  if (!is_root(ranks)) return receive_from(ranks, mine, 0);
  for (int stage = 0; stage < ranks.stages(); ++stage) {
    const ModelPart part = part_of(plan, stage);
    std::vector<float> theirs(static_cast<std::size_t>(elements_of(part.parameters, elements)));
    for_each_tensor(plan, part, elements, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      std::copy_n(whole.begin() + from, count, theirs.begin() + to);
    });
    for (int replica = 0; replica < ranks.replicas(); ++replica)
      if (replica == 0 && stage == 0)
        std::ranges::copy(theirs, mine.begin());
      else
        send_to(ranks, theirs, ranks.rank_of(replica, stage));
  }
}

std::vector<float> gather_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine) {
  if (!is_root(ranks)) {
    send_to(ranks, mine, 0);
    return {};
  }
  const std::int64_t rows = plan.batch.rows_per_rank, row_size = plan.graph.state_size();
  std::vector<float> whole(static_cast<std::size_t>(plan.batch.global * row_size)), theirs;
  for (int replica = 0; replica < ranks.replicas(); ++replica)
    for (int stage = 0; stage < ranks.stages(); ++stage) {
      const StatePlace place = state_place(plan, stage);
      theirs.resize(static_cast<std::size_t>(rows * place.size));
      if (replica == 0 && stage == 0)
        std::ranges::copy(mine, theirs.begin());
      else
        receive_from(ranks, theirs, ranks.rank_of(replica, stage));
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(theirs.begin() + row * place.size, place.size,
                    whole.begin() + (replica * rows + row) * row_size + place.begin);
    }
  return whole;
}

void scatter_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine) {
  if (!is_root(ranks)) return receive_from(ranks, mine, 0);
  const std::int64_t rows = plan.batch.rows_per_rank, row_size = plan.graph.state_size();
  std::vector<float> theirs;
  for (int replica = 0; replica < ranks.replicas(); ++replica)
    for (int stage = 0; stage < ranks.stages(); ++stage) {
      const StatePlace place = state_place(plan, stage);
      theirs.resize(static_cast<std::size_t>(rows * place.size));
      for (std::int64_t row = 0; row < rows; ++row)
        std::copy_n(whole.begin() + (replica * rows + row) * row_size + place.begin, place.size,
                    theirs.begin() + row * place.size);
      if (replica == 0 && stage == 0)
        std::ranges::copy(theirs, mine.begin());
      else
        send_to(ranks, theirs, ranks.rank_of(replica, stage));
    }
}

}  // namespace ringtrain
