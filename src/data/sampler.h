// The global order of samples. It depends on (seed, epoch) only, never on rank, thread or shard.
#pragma once

#include <cstdint>

namespace ringtrain {

// A pseudo-random permutation of [0, count) that needs no memory. It is a Feistel network over the next power of four
// with cycle walking (Black and Rogaway 2002), keyed by (seed, epoch).
class EpochOrder {
 public:
  EpochOrder(std::uint64_t seed, std::int64_t epoch, std::int64_t count);
  std::int64_t operator()(std::int64_t position) const;  // position in [0, count)

 private:
  std::uint64_t key_ = 0;
  std::int64_t count_ = 0;
  int half_bits_ = 1;
};

}  // namespace ringtrain
