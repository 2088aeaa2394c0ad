// The algorithms by which ranks sum a vector: the steps in which they exchange its parts, and which algorithm is the
// fastest for given ranks, nodes and bytes, by the stated latencies and bandwidths. This file only computes. MpiLanes
// and MpiSteps (mpi_sums.h) carry the steps out, for gradients and for a few numbers. A schedule lists the steps of one
// rank. The schedules of all ranks fit together.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ringtrain {

// The elements [begin, end) of the vector.
struct SumRange {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
  bool operator==(const SumRange&) const = default;
};

// A rank sends and receives at the same time. An empty range is not sent, and its receiver does not wait for it.
struct SumStep {
  int to = -1, from = -1;  // ranks
  SumRange sent = {}, received = {};
  bool adds = false;     // received values are added to this rank's values; otherwise they replace them
  bool in_node = false;  // both partners are on this rank's node, in a sum that also goes between nodes
};

using SumSchedule = std::vector<SumStep>;

// In all sums, each element is summed by one rank, or by all ranks in the same order. All ranks therefore get the
// same bits. `length` is the number of elements. Pieces begin at multiples of `align` elements.

// Returns the steps of a reduce-scatter and an all-gather around a ring of p ranks: 2 (p - 1) steps with length / p
// elements each (Patarasuk and Yuan 2009).
SumSchedule ring_sum(int rank, int ranks, std::size_t length, std::size_t align);

// The two halves of the sum around a ring. Piece i has `piece` elements that begin at i x stride; it ends at `length`
// at the latest. After the reduce-scatter, rank r has the sums of piece r. The all-gather copies piece r of rank r to
// all ranks.
SumSchedule ring_reduce_scatter(int rank, int ranks, std::size_t length, std::size_t piece, std::size_t stride);
SumSchedule ring_all_gather(int rank, int ranks, std::size_t length, std::size_t piece, std::size_t stride);

// Recursive halving with distance doubling, then the reverse (Rabenseifner 2004). Rank r exchanges half of its values
// with rank r ^ 1, then a half of that half with r ^ 2, and so on. This takes 2 log2(p) steps and as many bytes as the
// ring. Neighbours usually share a node, and they exchange the most bytes. Up to small_sum elements the ranks exchange
// all their values instead (recursive doubling), which takes half the steps and gives the same bits. Each element is
// summed in a binary tree over the ranks. Ranks beyond the largest power of two first give their values to a partner,
// and get the result last.
SumSchedule halving_sum(int rank, int ranks, std::size_t length, std::size_t align);
inline constexpr std::size_t small_sum = 4096;

// Sends all pieces to all ranks by recursive doubling; `ranks` is a power of two, and rank r has piece r at the start.
// Before step k (distance d = 2^k), a rank has the d pieces of the ranks that differ from it only in the lowest k bits.
// It exchanges them with those of rank r ^ d:
//
//   rank 0   0 . . .  -> 0 1 . .  -> 0 1 2 3
//   rank 1   . 1 . .  -> 0 1 . .  -> 0 1 2 3
//   rank 2   . . 2 .  -> . . 2 3  -> 0 1 2 3
//   rank 3   . . . 3  -> . . 2 3  -> 0 1 2 3
SumSchedule doubling_gather(int rank, int ranks, std::size_t piece);

// Returns the most elements that a rank receives at once in a sum by halving. The number of ranks is a power of two.
std::size_t most_received(std::size_t length, std::size_t align);

// Sums within each node first, so that the ranks of a node do not all send the same element to other nodes. Local rank
// j receives piece j from the ranks of its node and adds it. The ranks with the same place in their nodes then sum
// their pieces: by halving, or around a ring if the number of nodes is not a power of two. At last every rank sends its
// piece to the ranks of its node. `nodes` has the ranks of each node. All nodes have the same number of ranks.
SumSchedule hierarchical_sum(int rank, const std::vector<std::vector<int>>& nodes, std::size_t length,
                             std::size_t align);

// Sets in_node of each step. `node` lists the ranks of this rank's node.
void mark_steps_in_node(SumSchedule& schedule, const std::vector<int>& node);

// ---- The choice between the algorithms

// The ways to sum vectors in host memory over ranks: three schedules from above; `library` is the all-reduce of the MPI
// library.
enum class SumAlgorithm { ring, halving, hierarchical, library };
const char* sum_algorithm_name(SumAlgorithm algorithm);

// A message of b bytes takes alpha + beta b (Hockney 1994). If several sums are under way at the same time, only the
// messages of the first one take alpha. Those of later sums take gap + beta b (the gap of LogP, Culler et al. 1993).
struct Link {
  double alpha = 0, beta = 0, gap = 0;  // seconds, seconds per byte, seconds; gap <= alpha
  double error = 0;                     // error of a fit: the median of |1 - fitted / measured|
};
// `latency` in microseconds, `bandwidth` in 10^9 bytes per second.
constexpr Link stated_link(double latency, double bandwidth) {
  return {.alpha = latency * 1e-6, .beta = 1e-9 / bandwidth, .gap = latency * 1e-6};
}

// `node` holds if all ranks of a node send to its other ranks at the same time. `network` holds if only one rank of a
// node sends to another node.
struct SumLinks {
  Link node = stated_link(1, 5), network = stated_link(2, 12);
};

// The facts about ranks and nodes on which the time of a sum depends. Flows: the largest number of ranks of one node
// that send to other nodes in one step.
struct NodeShape {
  int ranks = 1, nodes = 1;
  int most_on_node = 1, least_on_node = 1;  // ranks
  int ring_flows = 0;                       // from rank r to rank r + 1
  std::vector<int> halving_flows = {};      // [k]: from rank r to r ^ 2^k, for ranks below the largest power of two
  int beyond_flows = 0;                     // between the ranks beyond that power and their partners
  bool even() const { return most_on_node == least_on_node; }
};
// Returns the shape of ranks, at least 1, that fill one node after the other.
NodeShape filled_nodes(int ranks, int ranks_per_node);

// The nodes of a group, each with its ranks in ascending order.
class RankLayout {
 public:
  // `node_of_rank` has the name of each rank's node, for example its host. There is at least one rank.
  explicit RankLayout(const std::vector<std::string>& node_of_rank);

  const std::vector<std::vector<int>>& nodes() const { return nodes_; }
  const std::vector<int>& node_of(int rank) const {
    return nodes_[static_cast<std::size_t>(node_of_rank_[static_cast<std::size_t>(rank)])];
  }
  const NodeShape& shape() const { return shape_; }

 private:
  std::vector<std::vector<int>> nodes_;
  std::vector<int> node_of_rank_;
  NodeShape shape_;
};

// Messages of a sum that follow one another: those of the rank that sends and receives the most.
struct SumMessages {
  double count = 0, bytes = 0;  // bytes of each
  int flows = 0;                // as in NodeShape; 0: within the nodes
};
// Returns the messages of a sum of `bytes` bytes. `algorithm` must not be `library`.
//
// A ring sends 2 (p - 1) messages of bytes / p (Patarasuk and Yuan 2009). Halving and doubling sends 2 log2(p) messages
// of 1/2, 1/4, ... of the bytes, and half as many of all bytes in a sum of at most small_sum elements (Rabenseifner
// 2004). If p is not a power of two, the ranks beyond it send their bytes to a partner and get the sum back.
std::vector<SumMessages> sum_messages(SumAlgorithm algorithm, const NodeShape& shape, double bytes);

// The seconds of a sum. While its bytes travel between nodes, the ranks may add the values of the next sum.
struct SumCost {
  double latency = 0, transfer = 0;     // of its messages, one after the other
  double gap = 0;                       // of the messages of the next sum
  double in_ranks = 0, on_network = 0;  // in which a sum occupies the ranks, and the network of a node
  double alone() const { return latency + transfer; }
  double occupancy() const { return gap + (in_ranks > on_network ? in_ranks : on_network); }  // until the next sum
};
// A message between nodes shares the network with the node's other flows, and is not faster than one within a node.
// The predictions of bench/scaling_model.h and the choice below use this formula.
SumCost sum_cost(SumAlgorithm algorithm, const NodeShape& shape, const SumLinks& links, double bytes);

// Returns the fastest of ring, halving and hierarchical. Hierarchical is considered only if there are several nodes and
// all nodes have the same number of ranks, and not for `flat` sums. The answer depends only on the arguments, so a
// resumed run makes the same choice.
SumAlgorithm fastest_sum(const NodeShape& shape, const SumLinks& links, double bytes, bool flat = false);

// The settings of an experiment for sums with MPI.
struct SumChoice {
  std::string algorithm = "auto";  // auto | ring | halving | hierarchical | mpi
  SumLinks links = {};
  std::vector<std::string> node_of_rank = {};  // empty: the hosts of the group
};
// Throws Error if MPI's sums do not have this algorithm (tree is NCCL's). For an experiment, this is known only after
// the search for GPUs.
void check_mpi_has(std::string_view algorithm);
// Returns the algorithm of a sum of `bytes` bytes.
SumAlgorithm chosen_sum(const SumChoice& choice, const NodeShape& shape, double bytes);
// Does what check_mpi_has() does. Also throws Error for hierarchical if the nodes have different numbers of ranks.
void check_sum_choice(const SumChoice& choice, const NodeShape& shape);

}  // namespace ringtrain
