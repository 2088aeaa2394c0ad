// Predicts from the stated latencies and bandwidths which sum algorithm is the fastest for given ranks, nodes and
// bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// The ways to sum vectors in host memory over ranks. sum_schedule.h describes the first three; `library` is the
// all-reduce of the MPI library.
enum class SumAlgorithm { ring, halving, hierarchical, library };
const char* sum_algorithm_name(SumAlgorithm algorithm);

// A message of b bytes takes latency + b / bandwidth (Hockney 1994). Latencies are in seconds, bandwidths in bytes per
// second. The `node` values hold if all ranks of a node send at the same time. The `network` values hold if only one
// rank of a node sends to another node.
struct SumLinks {
  double node_latency = 1e-6, node_bandwidth = 5e9;
  double network_latency = 2e-6, network_bandwidth = 12e9;
};

// The nodes of a group, each with its ranks in ascending order.
class RankLayout {
 public:
  // `node_of_rank` has the name of each rank's node, for example its host.
  explicit RankLayout(const std::vector<std::string>& node_of_rank);

  int ranks() const { return ranks_; }
  const std::vector<std::vector<int>>& nodes() const { return nodes_; }
  const std::vector<int>& node_of(int rank) const {
    return nodes_[static_cast<std::size_t>(node_of_rank_[static_cast<std::size_t>(rank)])];
  }
  bool even() const;                    // every node has the same number of ranks
  bool neighbours(int distance) const;  // rank r and r ^ distance are on one node, for all r
  int ring_flows() const;               // the most ranks of one node whose next rank is on another node

 private:
  int ranks_;
  std::vector<std::vector<int>> nodes_;
  std::vector<int> node_of_rank_;
};

// Messages of a sum that a rank sends one after the other, to the rank at this distance: the next one of a ring, or r ^
// distance in halving and doubling. Distance 0 stands for a message to or from a rank beyond the largest power of two.
struct SumMessages {
  int distance = 1;
  double count = 0, bytes = 0;  // bytes of each
};
// A ring sends 2 (p - 1) messages of bytes / p (Patarasuk and Yuan 2009).
std::vector<SumMessages> ring_messages(int ranks, double bytes);
// Halving and doubling sends 2 log2(p) messages of 1/2, 1/4, ... of the bytes, and half as many of all bytes in a sum
// of at most small_sum elements (Rabenseifner 2004). If p is not a power of two, the ranks beyond it send their bytes
// to a partner and get the sum back.
std::vector<SumMessages> halving_messages(int ranks, double bytes);

// The seconds of a sum: latencies of its messages, and transfer of its bytes. The ranks of a node share its network.
struct SumSeconds {
  double latency = 0, transfer = 0;
  double total() const { return latency + transfer; }
};
// Predicts the seconds of a sum of `bytes` bytes. `algorithm` must not be `library`.
SumSeconds sum_seconds(SumAlgorithm algorithm, const RankLayout& layout, const SumLinks& links, double bytes);

// Returns the fastest of ring, halving and hierarchical. Hierarchical is considered only if there are several nodes and
// all nodes have the same number of ranks. The answer depends only on the arguments, so a resumed run makes the same
// choice.
SumAlgorithm fastest_sum(const RankLayout& layout, const SumLinks& links, double bytes);

// The settings of an experiment for sums with MPI.
struct SumChoice {
  std::string algorithm = "auto";  // auto | ring | halving | hierarchical | mpi
  SumLinks links = {};
  std::vector<std::string> node_of_rank = {};  // empty: the hosts of the group
};
// Throws Error if MPI's sums do not have this algorithm (tree is NCCL's). For an experiment, this is known only after
// the search for GPUs.
void check_mpi_has(std::string_view algorithm);
// Does what check_mpi_has() does. Also throws Error for hierarchical if the nodes have different numbers of ranks.
void check_sum_choice(const SumChoice& choice, const RankLayout& layout);

}  // namespace ringtrain
