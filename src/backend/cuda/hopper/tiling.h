// How a problem falls into tiles, and where partial sums lie: the rules that the library and the program share. Plain
// C++, no CUTLASS.
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

// Of forward convolutions and data gradients: pixels of the result, and its channels.
inline std::int64_t result_rows(const Problem& p) {
  return p.work == Work::forward_sums ? p.n * out_height(p) * out_width(p) : p.n * p.h * p.w;
}
inline std::int64_t result_channels(const Problem& p) {
  return p.work == Work::forward_sums ? p.k : p.c;
}
inline std::int64_t tiles_per_group(const Problem& p, std::int64_t tile_rows) {
  return tiles_of(result_rows(p) / p.groups, tile_rows);
}

// Into how many runs of pixels a weight gradient is cut, so that its few tiles keep all multiprocessors busy: the
// fewest runs that leave less than a tenth of them idle, or else the best.
std::int64_t weight_gradient_splits(const Problem& p, const Description& instance);

// Steps of `depth` pixels that each of them takes; the last may have fewer, none has none.
std::int64_t steps_per_split(const Problem& p, std::int64_t depth, std::int64_t splits);

// Bytes from the workspace's begin.
struct Workspace {
  std::int64_t sum = 0, sum_other = 0, splits = 0, bytes = 0;
  std::int64_t sum_columns = 0;  // floats from a tile's partial sums to the next tile's
};
Workspace workspace_of(const Problem& p, const Description& instance);

// Why this instance is not for the problem; "": it is, if CUTLASS can do it too.
std::string refusal(const Problem& p, const Description& instance);

}  // namespace ringtrain::cuda::hopper
