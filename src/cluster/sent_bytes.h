// Counts the bytes that this rank gives to other ranks while it trains.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringtrain {

struct SentBytes {
  std::int64_t by_message = 0;      // by MPI or NCCL, within a node and between nodes
  std::int64_t through_memory = 0;  // ranks of the same node read them in this rank's memory (node_memory.h)

  SentBytes& operator+=(const SentBytes& other) {
    by_message += other.by_message;
    through_memory += other.through_memory;
    return *this;
  }
  SentBytes operator-(const SentBytes& other) const {
    return {by_message - other.by_message, through_memory - other.through_memory};
  }
};

// Returns the bytes since the start of the process. The code that sends adds its bytes here. Only the main thread
// sends. A library does not say what its collectives send. Sums and gathered pieces then count as those of a ring. A
// broadcast counts its data once for each receiver. In a sum on one rank, every other rank counts its data once.
inline SentBytes& sent_bytes() {
  static SentBytes bytes;
  return bytes;
}

// Returns the bytes that a rank sends in one half of a ring's sum, the reduce-scatter or the all-gather. It sends all
// of the `ranks` pieces but one.
inline std::int64_t ring_half_bytes(std::int64_t bytes, int ranks) {
  return bytes * (ranks - 1) / ranks;
}

}  // namespace ringtrain
