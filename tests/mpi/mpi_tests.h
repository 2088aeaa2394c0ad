// Helpers that the MPI tests share. Every test runs on all ranks and makes the same collective calls on each of them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/communicator.h"
#include "cluster/session.h"

const ringtrain::Session& session();

// Returns a whole number from -1024 to 1023. The sum of such numbers over up to 2^13 ranks is exact in fp32, in any
// order.
inline float exact_value(int rank, std::size_t index, int salt = 0) {
  const auto mixed =
      (static_cast<std::uint64_t>(rank) + 1) * 2654435761u + index * 40503u + static_cast<std::uint64_t>(salt) * 97u;
  return static_cast<float>(static_cast<int>(mixed * 0x9E3779B97F4A7C15ull >> 53) - 1024);
}

inline std::vector<float> exact_values(int rank, std::size_t count, int salt = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = exact_value(rank, i, salt);
  return values;
}

inline std::vector<float> exact_sums(int ranks, std::size_t count, int salt = 0) {
  std::vector<float> sums(count, 0);
  for (int r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < count; ++i) sums[i] += exact_value(r, i, salt);
  return sums;
}
