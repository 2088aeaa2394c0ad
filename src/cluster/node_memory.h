// Memory that the ranks of a node share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "cluster/rank_group.h"

namespace ringtrain {

// Returns `bytes` bytes of zeros. The first rank of each node makes them, and the group's other ranks on that node map
// them. The size is limited by the node's memory, not by /dev/shm. A rank that cannot map them gets memory of its own,
// and the node's first rank warns. Collective over the group. Throws Error if the system refuses the memory.
std::shared_ptr<SharedMemory> node_memory(const RankGroup& group, std::size_t bytes);

// Passes values between the ranks of a node without messages: a rank reads the vector of another rank in place. A pair
// of ranks passes values in slots. In each slot, values pass one after the other:
//
//   from:  send() ............................... is_read(): the values may change again
//   to:             receive(): their address, reads them, has_read()
//
// The functions from holds() on never block. Only the main thread may use this class.
class NodeExchange {
 public:
  // `node` lists the ranks of this rank's node, as ranks of the group, in ascending order. Collective over the group.
  // If the ranks cannot map each other's memory (containers), a warning says so, and holds() is false for all memory.
  NodeExchange(const RankGroup& group, std::vector<int> node, int slots);

  // Returns memory, filled with zeros, that the ranks of the node can read. It begins at a page. If the ranks cannot
  // map it, each rank gets memory of its own, and holds() is false for it. Collective over the group. Throws Error if
  // the system refuses the memory.
  void* allocate(std::size_t bytes);
  void release(void* memory);  // not collective

  // Returns true if the ranks of the node can read `values`. They can only read memory of allocate().
  bool holds(const float* values) const;
  // Returns true if `rank` is a rank of this rank's node.
  bool reaches(int rank) const { return rank >= 0 && place_of(rank) >= 0; }

  // Offers `values`, for which holds() is true, to a rank for which reaches() is true. The values must not change
  // before is_read() is true.
  void send(int to, int slot, std::span<const float> values);
  // Offers a copy of the values, which are at most most_copied.
  void send_copy(int to, int slot, std::span<const float> values);
  bool is_read(int to, int slot) const;

  // Returns the values that `from` has offered in the slot, valid until has_read(). Null: it has not offered any yet.
  const float* receive(int from, int slot) const;
  void has_read(int from, int slot);

  static constexpr std::size_t most_copied = 4096;  // in elements

 private:
  // A slot has an Offer and a Receipt for each direction. The sender writes the Offer and the reader writes the
  // Receipt, each in its own memory and in a cache line of its own. A rank that waits thus reads its cache until the
  // other rank writes.
  struct alignas(64) Offer {
    std::uint64_t count;           // number of offers so far; written last
    std::uint64_t region, offset;  // place of the values in the sender's memory
  };
  struct alignas(64) Receipt {
    std::uint64_t count;  // number of offers read so far
  };
  // Memory of one call of allocate(): this rank's memory, and that of the node's ranks, indexed by place.
  struct Region {
    std::shared_ptr<SharedMemory> own;
    std::vector<std::shared_ptr<SharedMemory>> of_place;  // empty: the ranks do not share it
  };

  int place_of(int rank) const;
  std::pair<std::uint64_t, std::uint64_t> find(const float* values) const;  // region (none: regions_.size()), offset
  std::byte* bytes(int place) const;                                        // memory of region 0
  Offer& offer(int from, int to, int slot) const;                           // from, to: places on the node
  Receipt& receipt(int from, int to, int slot) const;
  float* copies(int place, int slot) const;

  RankGroup group_;
  std::vector<int> node_;
  int place_, slots_;
  std::vector<Region> regions_;  // [0]: offers, receipts and copies
};

}  // namespace ringtrain
