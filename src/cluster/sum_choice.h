// Which way of summing is the fastest for so many ranks, nodes and bytes, from what is stated of the links.
#pragma once

#include <string>
#include <vector>

namespace ringtrain {

// How vectors in host memory are summed over ranks; sum_schedule.h describes the first three. library: MPI's own.
enum class SumAlgorithm { ring, halving, hierarchical, library };
const char* sum_algorithm_name(SumAlgorithm algorithm);

// A message of b bytes takes latency + b / bandwidth (Hockney 1994). Seconds, bytes per second. `node`: between ranks
// of a node that all send; `network`: of one rank of a node that sends alone.
struct SumLinks {
  double node_latency = 1e-6, node_bandwidth = 5e9;
  double network_latency = 2e-6, network_bandwidth = 12e9;
};

// Where the ranks of a group are: the ranks of each node, ascending.
class RankLayout {
 public:
  // `node_of_rank`: what ranks of one node have in common, of each rank: its host's name.
  explicit RankLayout(const std::vector<std::string>& node_of_rank);

  int ranks() const { return ranks_; }
  const std::vector<std::vector<int>>& nodes() const { return nodes_; }
  const std::vector<int>& node_of(int rank) const {
    return nodes_[static_cast<std::size_t>(node_of_rank_[static_cast<std::size_t>(rank)])];
  }
  bool even() const;                    // as many ranks on every node
  bool neighbours(int distance) const;  // rank r and r ^ distance are on one node, for all r
  int ring_flows() const;               // ranks of a node whose next rank is on another node: the most

 private:
  int ranks_;
  std::vector<std::vector<int>> nodes_;
  std::vector<int> node_of_rank_;
};

// What the messages of a sum wait, and what its bytes take; seconds. The ranks of a node share its network.
struct SumSeconds {
  double latency = 0, transfer = 0;
  double total() const { return latency + transfer; }
};
// Not for library.
SumSeconds sum_seconds(SumAlgorithm algorithm, const RankLayout& layout, const SumLinks& links, double bytes);

// The fastest of ring, halving and (as many ranks on every node) hierarchical. A function of its arguments alone, so a
// run that goes on chooses as before.
SumAlgorithm fastest_sum(const RankLayout& layout, const SumLinks& links, double bytes);

// What an experiment says of sums by MPI.
struct SumChoice {
  std::string algorithm = "auto";  // auto | ring | halving | hierarchical | mpi
  SumLinks links = {};
  std::vector<std::string> node_of_rank = {};  // empty: the hosts of the group
};
// Throws Error for other words, and for hierarchical where the nodes have different numbers of ranks.
void check_sum_choice(const SumChoice& choice, const RankLayout& layout);

}  // namespace ringtrain
