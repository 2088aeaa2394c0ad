// Which units dropout drops. CPU and GPU kernels call the same functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace ringtrain {

// Dropout (Srivastava et al. 2014). A unit is dropped if its 16 random bits are below this threshold. The random bits
// come from Philox, a counter-based generator (base/random.h). They depend on the place in the data, never on the rank
// or thread. One Philox block gives 16 bits to each of eight units, so the drop probability is a multiple of 1/65536.
// Among 128 neighbouring units, unit u takes half u / 64 of word (u / 16) % 4 of block u % 16. Neighbouring units are
// thus in neighbouring lanes of a vector register.
RINGTRAIN_HD std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(probability * 65536.0 + 0.5);
}
// Philox's counter. `low` has 32 bits of the global row, the lower 16 bits of the time step, and 16 bits of the block.
// `high` has the next 8 bits of the time step, 40 bits of the training step, and 16 bits of the layer. A time step of
// 2^24 or more would repeat the bits of an earlier time step; data.sequence allows at most 10^6.
struct DropoutCounter {
  std::uint64_t low, high;
};
RINGTRAIN_HD DropoutCounter dropout_counter(std::int64_t step, std::int64_t layer, std::int64_t global_row,
                                            std::int64_t time, std::int64_t block) {
  const auto t = static_cast<std::uint64_t>(time);
  return {(static_cast<std::uint64_t>(global_row) << 32) | ((t & 0xffffu) << 16) | static_cast<std::uint64_t>(block),
          (t >> 16 << 56) | (static_cast<std::uint64_t>(step) << 16) | static_cast<std::uint64_t>(layer)};
}

}  // namespace ringtrain
