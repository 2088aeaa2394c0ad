#include "checkpoint/stage_parts.h"

#include <algorithm>
#include <cstdint>

#include "nn/parameters.h"
#include "run/split.h"

namespace ringtrain {
namespace {

constexpr int kParts = 3;  // message tag

std::int64_t elements_of(const ParameterTable& parameters, Elements elements) {
  return elements == Elements::all ? parameters.size() : parameters.trained();
}

// Neighbouring values, with their offsets in the whole array and in the part of a rank.
struct PartRange {
  std::int64_t whole = 0, part = 0, count = 0;
};
struct StagePart {
  std::int64_t size = 0;  // the values of one rank
  std::vector<PartRange> ranges = {};
};

// How an array is divided among the ranks of a pipeline.
struct Division {
  std::int64_t size = 0;  // the values of the whole array
  std::vector<StagePart> stages = {};
  // How many values of the whole array a replica has. The ranges are those of replica 0. 0: each replica has them all.
  std::int64_t of_replica = 0;
};

// `whole` has the layout of plan.parameters, and a part has that of the stage's parameters.
Division division_of_vector(const RunPlan& plan, int stages, Elements elements) {
  Division division{.size = elements_of(plan.parameters, elements)};
  for (int stage = 0; stage < stages; ++stage) {
    const ModelPart part = part_of(plan, stage);
    StagePart& own = division.stages.emplace_back(StagePart{.size = elements_of(part.parameters, elements)});
    for (const Parameter& p : part.parameters.all())
      if (elements == Elements::all || p.kind != ParameterKind::statistic)
        own.ranges.push_back({plan.parameters.find(p.name).offset, p.offset, p.count});
  }
  return division;
}

// The hidden state that an LSTM carries from one batch to the next. A part is [rows of a replica, layers of the stage,
// (h, c), hidden]. The whole array is [global rows, all layers, (h, c), hidden].
Division division_of_state(const RunPlan& plan, int stages) {
  const std::int64_t rows = plan.batch.rows_per_rank, row_size = plan.graph.state_size();
  Division division{.size = plan.batch.global * row_size, .of_replica = rows * row_size};
  std::int64_t begin = 0;  // in a row that has the state of all layers
  for (int stage = 0; stage < stages; ++stage) {
    const std::int64_t size = part_of(plan, stage).graph.state_size();
    StagePart& own = division.stages.emplace_back(StagePart{.size = rows * size});
    for (std::int64_t row = 0; row < rows; ++row) own.ranges.push_back({row * row_size + begin, row * size, size});
    begin += size;
  }
  return division;
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

// Collective. `mine` is this rank's part. The result is empty on all ranks but 0.
std::vector<float> gather_parts(const Division& division, StageRanks& ranks, std::span<const float> mine) {
  const int replicas = division.of_replica > 0 ? ranks.replicas() : 1;
  if (!is_root(ranks)) {
    if (ranks.replica() < replicas) send_to(ranks, mine, 0);
    return {};
  }
  std::vector<float> whole(static_cast<std::size_t>(division.size)), theirs;
  for (int replica = 0; replica < replicas; ++replica)
    for (int stage = 0; stage < ranks.stages(); ++stage) {
      const StagePart& part = division.stages[static_cast<std::size_t>(stage)];
      theirs.resize(static_cast<std::size_t>(part.size));
      if (replica == 0 && stage == 0)
        std::ranges::copy(mine, theirs.begin());
      else
        receive_from(ranks, theirs, ranks.rank_of(replica, stage));
      for (const PartRange& r : part.ranges)
        std::copy_n(theirs.begin() + r.part, r.count, whole.begin() + replica * division.of_replica + r.whole);
    }
  return whole;
}

// Collective. Sends the parts of `whole`, which is read on rank 0 only, to the ranks of every replica. It is the
// reverse of gather_parts().
void scatter_parts(const Division& division, StageRanks& ranks, std::span<const float> whole, std::span<float> mine) {
  if (!is_root(ranks)) return receive_from(ranks, mine, 0);
  std::vector<float> theirs;
  for (int replica = 0; replica < ranks.replicas(); ++replica)
    for (int stage = 0; stage < ranks.stages(); ++stage) {
      const StagePart& part = division.stages[static_cast<std::size_t>(stage)];
      theirs.assign(static_cast<std::size_t>(part.size), 0.0f);  // no range has the padding
      for (const PartRange& r : part.ranges)
        std::copy_n(whole.begin() + replica * division.of_replica + r.whole, r.count, theirs.begin() + r.part);
      if (replica == 0 && stage == 0)
        std::ranges::copy(theirs, mine.begin());
      else
        send_to(ranks, theirs, ranks.rank_of(replica, stage));
    }
}

}  // namespace

std::vector<float> join_vector(const RunPlan& plan, Elements elements, StageRanks& ranks, std::span<const float> mine) {
  return gather_parts(division_of_vector(plan, ranks.stages(), elements), ranks, mine);
}

void split_vector(const RunPlan& plan, Elements elements, StageRanks& ranks, std::span<const float> whole,
                  std::span<float> mine) {
  scatter_parts(division_of_vector(plan, ranks.stages(), elements), ranks, whole, mine);
}

std::vector<float> join_carried_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> mine) {
  return gather_parts(division_of_state(plan, ranks.stages()), ranks, mine);
}

void split_carried_state(const RunPlan& plan, StageRanks& ranks, std::span<const float> whole, std::span<float> mine) {
  scatter_parts(division_of_state(plan, ranks.stages()), ranks, whole, mine);
}

}  // namespace ringtrain
