#include "cluster/sum_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "base/error.h"
#include "cluster/sum_schedule.h"

namespace ringtrain {
namespace {

// The cost of one step is that of its slowest message. `flows` ranks of a node send over its network at the same time.
struct StepCost {
  double latency = 0, seconds_per_byte = 0;
};
StepCost node_step(const SumLinks& links) {
  return {links.node_latency, 1 / links.node_bandwidth};
}
StepCost network_step(const SumLinks& links, double flows) {
  return {links.network_latency, std::max(flows / links.network_bandwidth, 1 / links.node_bandwidth)};
}

// `step_to(distance)` is the cost of a message over this distance.
template <class StepTo>
SumSeconds seconds_of(const std::vector<SumMessages>& messages, const StepTo& step_to) {
  SumSeconds sum;
  for (const SumMessages& m : messages) {
    const StepCost step = step_to(m.distance);
    sum.latency += m.count * step.latency;
    sum.transfer += m.count * m.bytes * step.seconds_per_byte;
  }
  return sum;
}

}  // namespace

std::vector<SumMessages> ring_messages(int ranks, double bytes) {
  return {{1, 2.0 * (ranks - 1), bytes / ranks}};
}

std::vector<SumMessages> halving_messages(int ranks, double bytes) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  const bool small = bytes <= static_cast<double>(small_sum * sizeof(float));
  std::vector<SumMessages> messages;
  if (power < ranks) messages.push_back({0, 2, bytes});
  for (int distance = 1; distance < power; distance *= 2) {
    if (!small) bytes /= 2;
    messages.push_back({distance, small ? 1.0 : 2.0, bytes});
  }
  return messages;
}

const char* sum_algorithm_name(SumAlgorithm algorithm) {
  switch (algorithm) {
    case SumAlgorithm::ring:
      return "ring";
    case SumAlgorithm::halving:
      return "halving";
    case SumAlgorithm::hierarchical:
      return "hierarchical";
    case SumAlgorithm::library:
      return "mpi";
  }
  return "";
}

RankLayout::RankLayout(const std::vector<std::string>& node_of_rank)
    : ranks_(static_cast<int>(node_of_rank.size())), node_of_rank_(node_of_rank.size()) {
  std::map<std::string, int> known;
  for (std::size_t r = 0; r < node_of_rank.size(); ++r) {
    const auto [at, is_new] = known.try_emplace(node_of_rank[r], static_cast<int>(nodes_.size()));
    if (is_new) nodes_.emplace_back();
    node_of_rank_[r] = at->second;
    nodes_[static_cast<std::size_t>(at->second)].push_back(static_cast<int>(r));
  }
}

bool RankLayout::even() const {
  return std::ranges::all_of(nodes_, [&](const auto& node) { return node.size() == nodes_.front().size(); });
}

bool RankLayout::neighbours(int distance) const {
  for (int r = 0; r < ranks_; ++r) {
    const int partner = r ^ distance;
    if (partner < ranks_ &&
        node_of_rank_[static_cast<std::size_t>(r)] != node_of_rank_[static_cast<std::size_t>(partner)])
      return false;
  }
  return true;
}

int RankLayout::ring_flows() const {
  int most = 0;
  for (std::size_t n = 0; n < nodes_.size(); ++n) {
    const auto leaves = [&](int rank) {
      return node_of_rank_[static_cast<std::size_t>((rank + 1) % ranks_)] != static_cast<int>(n);
    };
    most = std::max(most, static_cast<int>(std::ranges::count_if(nodes_[n], leaves)));
  }
  return most;
}

SumSeconds sum_seconds(SumAlgorithm algorithm, const RankLayout& layout, const SumLinks& links, double bytes) {
  const int ranks = layout.ranks(), nodes = static_cast<int>(layout.nodes().size());
  std::size_t most = 1;  // largest number of ranks on a node
  for (const auto& node : layout.nodes()) most = std::max(most, node.size());
  const StepCost in_node = node_step(links), all_out = network_step(links, static_cast<double>(most));
  const auto out = [&](int) { return all_out; };
  switch (algorithm) {
    case SumAlgorithm::ring:
      return seconds_of(ring_messages(ranks, bytes),
                        [&](int) { return nodes == 1 ? in_node : network_step(links, layout.ring_flows()); });
    case SumAlgorithm::halving:
      return seconds_of(halving_messages(ranks, bytes), [&](int distance) {
        return nodes == 1 || (distance > 0 && layout.neighbours(distance)) ? in_node : all_out;
      });
    case SumAlgorithm::hierarchical: {
      const int locals = static_cast<int>(most);
      const double piece = bytes / locals;
      const bool halves = std::has_single_bit(static_cast<unsigned>(nodes));
      const SumSeconds inside = seconds_of(ring_messages(locals, bytes), [&](int) { return in_node; });
      const SumSeconds between = seconds_of(halves ? halving_messages(nodes, piece) : ring_messages(nodes, piece), out);
      return {inside.latency + between.latency, inside.transfer + between.transfer};
    }
    case SumAlgorithm::library:
      break;
  }
  throw Error("the time of MPI's own all-reduce cannot be predicted");
}

SumAlgorithm fastest_sum(const RankLayout& layout, const SumLinks& links, double bytes) {
  SumAlgorithm best = SumAlgorithm::halving;
  double least = sum_seconds(best, layout, links, bytes).total();
  for (const SumAlgorithm algorithm : {SumAlgorithm::hierarchical, SumAlgorithm::ring}) {
    if (algorithm == SumAlgorithm::hierarchical && (!layout.even() || layout.nodes().size() == 1)) continue;
    const double seconds = sum_seconds(algorithm, layout, links, bytes).total();
    if (seconds >= least * (1 - 1e-9)) continue;
    best = algorithm, least = seconds;
  }
  return best;
}

void check_mpi_has(std::string_view algorithm) {
  static constexpr std::array<std::string_view, 5> words = {"auto", "ring", "halving", "hierarchical", "mpi"};
  if (std::ranges::find(words, algorithm) == words.end())
    throw Error(cat("communication.algorithm is '", algorithm, "', and the sums of this run go through MPI"),
                "choose auto, ring, halving, hierarchical or mpi; tree is NCCL's");
}

void check_sum_choice(const SumChoice& choice, const RankLayout& layout) {
  check_mpi_has(choice.algorithm);
  if (choice.algorithm != "hierarchical" || layout.even()) return;
  const auto& nodes = layout.nodes();
  const auto [least, most] = std::ranges::minmax(nodes, {}, [](const auto& node) { return node.size(); });
  throw Error(cat("communication.algorithm is 'hierarchical', but one node has ", least.size(), " ranks and another ",
                  most.size(), ", expected the same number on every node"),
              "start the same number of ranks on every node (srun --ntasks-per-node), or choose auto, ring or halving");
}

}  // namespace ringtrain
