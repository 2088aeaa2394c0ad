// Divides a problem into tiles and lays out the partial sums in the workspace. The library and the program share these
// rules. The code is plain C++ and does not use CUTLASS.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda/hopper/interface.h"

namespace ringtrain::cuda::hopper {

inline std::int64_t out_height(const Problem& p) {
  return (p.h + 2 * p.padding - p.r) / p.stride + 1;
}
inline std::int64_t out_width(const Problem& p) {
  return (p.w + 2 * p.padding - p.r) / p.stride + 1;
}
inline std::int64_t tiles_of(std::int64_t count, std::int64_t tile) {
  return (count + tile - 1) / tile;
}

// These return the pixels and the channels of the result of a forward convolution or a data gradient.
inline std::int64_t result_rows(const Problem& p) {
  return p.work == Work::forward_sums ? p.n * out_height(p) * out_width(p) : p.n * p.h * p.w;
}
inline std::int64_t result_channels(const Problem& p) {
  return p.work == Work::forward_sums ? p.k : p.c;
}
inline std::int64_t tiles_per_group(const Problem& p, std::int64_t tile_rows) {
  return tiles_of(result_rows(p) / p.groups, tile_rows);
}

// Returns the number of splits of a weight gradient. A split is a range of pixels whose part of the sum a block
// computes alone. Splits keep all multiprocessors busy although the result has few tiles. The rule takes the smallest
// number that leaves less than a tenth of the multiprocessors idle. If no number does, it takes the one that leaves the
// fewest idle.
std::int64_t weight_gradient_splits(const Problem& p, const Description& instance);

// Returns the number of steps of `depth` pixels in each split. The last split may have fewer steps, but it has at least
// one.
std::int64_t steps_per_split(const Problem& p, std::int64_t depth, std::int64_t splits);

// Holds offsets in the workspace, in bytes from its beginning.
struct Workspace {
  std::int64_t sum = 0, sum_other = 0, splits = 0, bytes = 0;
  std::int64_t sum_columns = 0;  // floats from the partial sums of one tile to those of the next tile
};
Workspace workspace_of(const Problem& p, const Description& instance);

// Returns the reason why this instance cannot compute the problem. "" means that only CUTLASS's own check remains.
std::string refusal(const Problem& p, const Description& instance);

}  // namespace ringtrain::cuda::hopper
