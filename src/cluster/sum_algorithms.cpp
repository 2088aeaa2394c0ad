#include "cluster/sum_algorithms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/rounding.h"

namespace ringtrain {
namespace {

// Equal pieces of a vector. The last pieces may be shorter or empty.
struct Pieces {
  std::size_t length, piece, stride;
  SumRange operator[](int index) const {
    const std::size_t begin = std::min(length, static_cast<std::size_t>(index) * stride);
    return {begin, std::min(length, begin + piece)};
  }
};

Pieces equal_pieces(std::size_t length, int count, std::size_t align) {
  const auto n = static_cast<std::size_t>(count);
  const std::size_t piece = round_up(divide_up(length, n), align);
  return {length, piece, piece};
}

// Returns steps [first, end) of the 2 (p - 1) steps of p ranks. In step s every rank sends piece (rank - shift - s) to
// the right and receives piece (rank - shift - s - 1) from the left, modulo p. After p - 1 steps, rank r has the sum of
// piece r + 1 - shift. Example without a shift:
//
//   p = 3, rank 0:  send 0, add 2 | send 2, add 1 | send 1, take 0 | send 0, take 2
SumSchedule ring_steps(int rank, int ranks, const Pieces& pieces, int first, int end, int shift) {
  SumSchedule schedule;
  const auto piece_of = [&](int step) { return pieces[((rank - shift - step) % ranks + ranks) % ranks]; };
  for (int s = first; s < end; ++s)
    schedule.push_back({.to = (rank + 1) % ranks,
                        .from = (rank + ranks - 1) % ranks,
                        .sent = piece_of(s),
                        .received = piece_of(s + 1),
                        .adds = s < ranks - 1});
  return schedule;
}

// Appends the schedule of a part of the vector. The part begins at `begin`, and the ranks `members` take part.
void append(SumSchedule& schedule, SumSchedule part, std::size_t begin, const std::vector<int>& members) {
  const auto member = [&](int index) { return index < 0 ? -1 : members[static_cast<std::size_t>(index)]; };
  for (SumStep& step : part) {
    step.to = member(step.to), step.from = member(step.from);
    for (SumRange* range : {&step.sent, &step.received}) range->begin += begin, range->end += begin;
    schedule.push_back(step);
  }
}

}  // namespace

SumSchedule ring_sum(int rank, int ranks, std::size_t length, std::size_t align) {
  return ring_steps(rank, ranks, equal_pieces(length, ranks, align), 0, 2 * (ranks - 1), 0);
}

SumSchedule ring_reduce_scatter(int rank, int ranks, std::size_t length, std::size_t piece, std::size_t stride) {
  return ring_steps(rank, ranks, {length, piece, stride}, 0, ranks - 1, 1);
}

SumSchedule ring_all_gather(int rank, int ranks, std::size_t length, std::size_t piece, std::size_t stride) {
  return ring_steps(rank, ranks, {length, piece, stride}, ranks - 1, 2 * (ranks - 1), 1);
}

SumSchedule halving_sum(int rank, int ranks, std::size_t length, std::size_t align) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks))), beyond = ranks - power;
  const SumRange all{0, length};
  if (rank >= power) return {{.to = rank - power, .sent = all}, {.from = rank - power, .received = all}};

  SumSchedule schedule;
  if (rank < beyond) schedule.push_back({.from = rank + power, .received = all, .adds = true});
  if (length <= small_sum) {
    for (int distance = 1; distance < power; distance *= 2) {
      const int partner = rank ^ distance;
      schedule.push_back({.to = partner, .from = partner, .sent = all, .received = all, .adds = true});
    }
  } else {
    SumSchedule back;  // steps in reverse order
    SumRange kept = all;
    for (int distance = 1; distance < power; distance *= 2) {
      const int partner = rank ^ distance;
      const std::size_t middle = std::min(kept.end, kept.begin + round_up(divide_up(kept.size(), 2), align));
      SumRange given{middle, kept.end};
      kept.end = middle;
      if ((rank & distance) != 0) std::swap(kept, given);
      schedule.push_back({.to = partner, .from = partner, .sent = given, .received = kept, .adds = true});
      back.push_back({.to = partner, .from = partner, .sent = kept, .received = given});
    }
    schedule.insert(schedule.end(), back.rbegin(), back.rend());
  }
  if (rank < beyond) schedule.push_back({.to = rank + power, .sent = all});
  return schedule;
}

SumSchedule doubling_gather(int rank, int ranks, std::size_t piece) {
  SumSchedule schedule;
  for (int distance = 1; distance < ranks; distance *= 2) {
    const int own = rank & ~(distance - 1), partner = rank ^ distance;
    const auto pieces_from = [&](int first) {
      return SumRange{static_cast<std::size_t>(first) * piece, static_cast<std::size_t>(first + distance) * piece};
    };
    schedule.push_back(
        {.to = partner, .from = partner, .sent = pieces_from(own), .received = pieces_from(own ^ distance)});
  }
  return schedule;
}

std::size_t most_received(std::size_t length, std::size_t align) {
  return halving_sum(0, 2, length, align).front().received.size();
}

SumSchedule hierarchical_sum(int rank, const std::vector<std::vector<int>>& nodes, std::size_t length,
                             std::size_t align) {
  std::size_t node = 0, place = 0;
  for (std::size_t n = 0; n < nodes.size(); ++n)
    for (std::size_t i = 0; i < nodes[n].size(); ++i)
      if (nodes[n][i] == rank) node = n, place = i;
  const std::vector<int>& local = nodes[node];
  const int own = static_cast<int>(place), locals = static_cast<int>(local.size());
  const Pieces pieces = equal_pieces(length, locals, align);

  SumSchedule gather, schedule;
  for (int s = 1; s < locals; ++s) {
    const int next = (own + s) % locals, previous = (own + locals - s) % locals;
    const int to = local[static_cast<std::size_t>(next)], from = local[static_cast<std::size_t>(previous)];
    schedule.push_back({.to = to, .from = from, .sent = pieces[next], .received = pieces[own], .adds = true});
    gather.push_back({.to = to, .from = from, .sent = pieces[own], .received = pieces[previous]});
  }
  std::vector<int> peers;
  for (const std::vector<int>& ranks : nodes) peers.push_back(ranks[place]);
  const int count = static_cast<int>(nodes.size()), index = static_cast<int>(node);
  const bool halves = std::has_single_bit(nodes.size());
  append(schedule, (halves ? halving_sum : ring_sum)(index, count, pieces[own].size(), align), pieces[own].begin,
         peers);
  schedule.insert(schedule.end(), gather.begin(), gather.end());
  return schedule;
}

void mark_steps_in_node(SumSchedule& schedule, const std::vector<int>& node) {
  const auto is_here = [&](int partner) { return partner < 0 || std::ranges::find(node, partner) != node.end(); };
  for (SumStep& step : schedule) step.in_node = is_here(step.to) && is_here(step.from);
}

namespace {

std::vector<SumMessages> ring_messages(int ranks, double bytes, int flows) {
  return {{2.0 * (ranks - 1), bytes / ranks, flows}};
}

// `flows(k)` is the number of flows to rank r ^ 2^k.
template <class Flows>
std::vector<SumMessages> halving_messages(int ranks, double bytes, int beyond_flows, const Flows& flows) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  const bool small = bytes <= static_cast<double>(small_sum * sizeof(float));
  std::vector<SumMessages> messages;
  if (power < ranks) messages.push_back({2, bytes, beyond_flows});  // there and back, as if in one direction
  for (int k = 0; (1 << k) < power; ++k) {
    if (!small) bytes /= 2;
    messages.push_back({small ? 1.0 : 2.0, bytes, flows(k)});
  }
  return messages;
}

// Returns the most ranks of one node whose partner is on another node. partner_of() is -1 for a rank without partner.
template <class PartnerOf>
int flows_between(const std::vector<int>& node_of_rank, int nodes, const PartnerOf& partner_of) {
  std::vector<int> flows(static_cast<std::size_t>(nodes));
  const auto node = [&](int rank) { return static_cast<std::size_t>(node_of_rank[static_cast<std::size_t>(rank)]); };
  for (int r = 0; r < static_cast<int>(node_of_rank.size()); ++r)
    if (const int partner = partner_of(r); partner >= 0 && node(partner) != node(r)) ++flows[node(r)];
  return *std::ranges::max_element(flows);
}

// Nodes have the numbers from 0 to `nodes` - 1.
NodeShape shape_of(const std::vector<int>& node_of_rank, int nodes) {
  const int ranks = static_cast<int>(node_of_rank.size());
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
  std::vector<int> sizes(static_cast<std::size_t>(nodes));
  for (const int node : node_of_rank) ++sizes[static_cast<std::size_t>(node)];
  const auto [least, most] = std::ranges::minmax(sizes);
  const auto flows = [&](const auto& partner_of) { return flows_between(node_of_rank, nodes, partner_of); };

  NodeShape shape{.ranks = ranks, .nodes = nodes, .most_on_node = most, .least_on_node = least};
  shape.ring_flows = flows([&](int r) { return (r + 1) % ranks; });
  for (int distance = 1; distance < power; distance *= 2)
    shape.halving_flows.push_back(flows([&](int r) { return r < power ? r ^ distance : -1; }));
  shape.beyond_flows = std::max(flows([&](int r) { return r >= power ? r - power : -1; }),
                                flows([&](int r) { return r + power < ranks ? r + power : -1; }));
  return shape;
}

}  // namespace

const char* sum_algorithm_name(SumAlgorithm algorithm) {
  static constexpr const char* names[] = {"ring", "halving", "hierarchical", "mpi"};
  static_assert(std::size(names) == static_cast<std::size_t>(SumAlgorithm::library) + 1);
  return names[static_cast<std::size_t>(algorithm)];
}

RankLayout::RankLayout(const std::vector<std::string>& node_of_rank) : node_of_rank_(node_of_rank.size()) {
  std::map<std::string, int> known;
  for (std::size_t r = 0; r < node_of_rank.size(); ++r) {
    const auto [at, is_new] = known.try_emplace(node_of_rank[r], static_cast<int>(nodes_.size()));
    if (is_new) nodes_.emplace_back();
    node_of_rank_[r] = at->second;
    nodes_[static_cast<std::size_t>(at->second)].push_back(static_cast<int>(r));
  }
  shape_ = shape_of(node_of_rank_, static_cast<int>(nodes_.size()));
}

NodeShape filled_nodes(int ranks, int ranks_per_node) {
  std::vector<int> node_of_rank(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) node_of_rank[static_cast<std::size_t>(r)] = r / ranks_per_node;
  return shape_of(node_of_rank, divide_up(ranks, ranks_per_node));
}

std::vector<SumMessages> sum_messages(SumAlgorithm algorithm, const NodeShape& shape, double bytes) {
  const int all = shape.most_on_node;
  switch (algorithm) {
    case SumAlgorithm::ring:
      return ring_messages(shape.ranks, bytes, shape.ring_flows);
    case SumAlgorithm::halving:
      return halving_messages(shape.ranks, bytes, shape.beyond_flows,
                              [&](int k) { return shape.halving_flows[static_cast<std::size_t>(k)]; });
    case SumAlgorithm::hierarchical: {
      const bool halves = std::has_single_bit(static_cast<unsigned>(shape.nodes));
      std::vector<SumMessages> messages = ring_messages(all, bytes, 0);
      const std::vector<SumMessages> between =
          halves ? halving_messages(shape.nodes, bytes / all, all, [&](int) { return all; })
                 : ring_messages(shape.nodes, bytes / all, all);
      messages.insert(messages.end(), between.begin(), between.end());
      return messages;
    }
    case SumAlgorithm::library:
      break;
  }
  throw Error("the time of MPI's own all-reduce cannot be predicted");
}

SumCost sum_cost(SumAlgorithm algorithm, const NodeShape& shape, const SumLinks& links, double bytes) {
  const Link &node = links.node, &network = links.network;
  SumCost cost;
  for (const SumMessages& m : sum_messages(algorithm, shape, bytes)) {
    const bool leaves = m.flows > 0;
    const double in_ranks = m.count * m.bytes * node.beta, on_network = m.count * m.bytes * m.flows * network.beta;
    cost.latency += m.count * (leaves ? std::max(node.alpha, network.alpha) : node.alpha);
    cost.transfer += std::max(in_ranks, on_network);
    cost.gap += m.count * (leaves ? std::max(node.gap, network.gap) : node.gap);
    cost.in_ranks += in_ranks;
    cost.on_network += on_network;
  }
  return cost;
}

SumAlgorithm fastest_sum(const NodeShape& shape, const SumLinks& links, double bytes, bool flat) {
  SumAlgorithm best = SumAlgorithm::halving;
  double least = sum_cost(best, shape, links, bytes).alone();
  for (const SumAlgorithm algorithm : {SumAlgorithm::hierarchical, SumAlgorithm::ring}) {
    if (algorithm == SumAlgorithm::hierarchical && (flat || !shape.even() || shape.nodes == 1)) continue;
    const double seconds = sum_cost(algorithm, shape, links, bytes).alone();
    if (seconds >= least * (1 - 1e-9)) continue;
    best = algorithm, least = seconds;
  }
  return best;
}

SumAlgorithm chosen_sum(const SumChoice& choice, const NodeShape& shape, double bytes) {
  for (const SumAlgorithm algorithm :
       {SumAlgorithm::ring, SumAlgorithm::halving, SumAlgorithm::hierarchical, SumAlgorithm::library})
    if (choice.algorithm == sum_algorithm_name(algorithm)) return algorithm;
  return fastest_sum(shape, choice.links, bytes);
}

void check_mpi_has(std::string_view algorithm) {
  static constexpr std::array<std::string_view, 5> words = {"auto", "ring", "halving", "hierarchical", "mpi"};
  if (std::ranges::find(words, algorithm) == words.end())
    throw Error(cat("communication.algorithm is '", algorithm, "', and the sums of this run go through MPI"),
                "choose auto, ring, halving, hierarchical or mpi; tree is NCCL's");
}

void check_sum_choice(const SumChoice& choice, const NodeShape& shape) {
  check_mpi_has(choice.algorithm);
  if (choice.algorithm != "hierarchical" || shape.even()) return;
  throw Error(cat("communication.algorithm is 'hierarchical', but one node has ", shape.least_on_node,
                  " ranks and another ", shape.most_on_node, ", expected the same number on every node"),
              "start the same number of ranks on every node (srun --ntasks-per-node), or choose auto, ring or halving");
}

}  // namespace ringtrain
