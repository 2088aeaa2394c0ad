// Counts the bytes that this rank gives to other ranks while it trains.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringtrain {

struct SentBytes {
  std::int64_t by_message = 0;      // by MPI or NCCL, within a node and between nodes
  std::int64_t through_memory = 0;  // ranks of the same node read them in this rank's memory (node_exchange.h)

  SentBytes& operator+=(const SentBytes& other) {
    by_message += other.by_message;
    through_memory += other.through_memory;
    return *this;
  }
  SentBytes operator-(const SentBytes& other) const {
    return {by_message - other.by_message, through_memory - other.through_memory};
  }
};

// All bytes since the start of the process. Everything that sends adds its bytes here; only the main thread sends. For
// collectives of a library, which does not say what it sends, these are the bytes of a ring (sums, gathered pieces) or
// of the data once for each receiver (broadcasts, sums on one rank).
inline SentBytes& sent_bytes() {
  static SentBytes bytes;
  return bytes;
}

// Bytes of a half of a ring's sum: each of `ranks` ranks sends all pieces but one.
inline std::int64_t ring_half_bytes(std::int64_t bytes, int ranks) {
  return bytes * (ranks - 1) / ranks;
}

}  // namespace ringtrain
