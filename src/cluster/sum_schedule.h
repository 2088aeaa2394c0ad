// The steps in which ranks exchange parts of a vector to sum it. This file only computes the steps. mpi_lanes.h carries
// them out for gradients, and MpiSteps (mpi_sums.h) for a few numbers. A schedule lists the steps of one rank. The
// schedules of all ranks fit together.
#pragma once

#include <cstddef>
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

}  // namespace ringtrain
