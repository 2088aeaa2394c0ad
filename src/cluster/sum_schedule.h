// Who sends what to whom, step by step, so that a vector is summed over ranks. Pure arithmetic: nothing is sent here
// (mpi_lanes.h does that). A schedule is one rank's part; the schedules of all ranks fit together.
#pragma once

#include <cstddef>
#include <vector>

namespace ringtrain {

// Elements [begin, end) of the vector.
struct SumRange {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
  bool operator==(const SumRange&) const = default;
};

// A rank sends and receives at the same time. An empty range is not sent, and its receiver does not wait for it.
struct SumStep {
  int to = -1, from = -1;  // ranks
  SumRange sent = {}, received = {};
  bool adds = false;     // what arrives is added to this rank's values; otherwise it replaces them
  bool in_node = false;  // of a sum that also goes between nodes: both partners are on this rank's node
};

using SumSchedule = std::vector<SumStep>;

// In all of them each element is summed by one rank, or by all ranks in the same order, so that all ranks end with the
// same bits. `length`: elements of the vector. `align`: pieces begin at multiples of so many elements.

// Reduce-scatter and all-gather around a ring: 2 (p - 1) steps, each of length / p (Patarasuk and Yuan 2009).
SumSchedule ring_sum(int rank, int ranks, std::size_t length, std::size_t align);

// The two halves of it. Piece i has `piece` elements from i x stride on, as far as they lie before `length`. The first
// leaves rank r with the sums of piece r; the second brings rank r's piece r to all.
SumSchedule ring_reduce_scatter(int rank, int ranks, std::size_t length, std::size_t piece, std::size_t stride);
SumSchedule ring_all_gather(int rank, int ranks, std::size_t length, std::size_t piece, std::size_t stride);

// Recursive halving with distance doubling, and back (Rabenseifner 2004): rank r exchanges half of what it has with
// rank r ^ 1, a half of that half with r ^ 2, and so on: 2 log2(p) steps and as many bytes as the ring. Neighbours,
// which share a node, exchange the most. Up to small_sum elements the ranks exchange all they have (recursive
// doubling): half the steps, and the same bits. Each element is summed in a binary tree over the ranks. Ranks beyond
// the largest power of two give their values to a partner first and get the result last.
SumSchedule halving_sum(int rank, int ranks, std::size_t length, std::size_t align);
inline constexpr std::size_t small_sum = 4096;

// The most elements that a rank receives at once in a sum by halving.
std::size_t most_received(std::size_t length, std::size_t align);

// Sums within each node first, so that a node sends every element once: local rank j receives piece j of its node's
// ranks and adds it, the ranks with the same place in their nodes sum their pieces (by halving, or around a ring where
// the nodes are no power of two), and every rank hands its piece to its node. `nodes`: the ranks of each, as many on
// every node.
SumSchedule hierarchical_sum(int rank, const std::vector<std::vector<int>>& nodes, std::size_t length,
                             std::size_t align);

// Sets in_node of each step: `node` are the ranks of this rank's node.
void mark_steps_in_node(SumSchedule& schedule, const std::vector<int>& node);

}  // namespace ringtrain
