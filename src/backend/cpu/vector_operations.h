// The operations of backend/vector_operations.h in host memory, and the optimizer's step.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/vector_operations.h"

namespace ringtrain::cpu {

// Works on ranges of a flat vector. Threads share the work in pieces of a fixed size.

// A part of a range, short enough to stay in a core's cache.
struct RangePiece {
  std::int64_t begin, count;  // elements of the vector
  std::size_t range;          // index of the range
};

// Returns the pieces in the order of the ranges. Their bounds are even if those of the ranges are. All ranges share one
// list, so small ranges need no parallel region of their own.
template <class Range>
std::vector<RangePiece> pieces_of(std::span<const Range> ranges) {
  constexpr std::int64_t most = 1 << 14;
  std::vector<RangePiece> pieces;
  for (std::size_t i = 0; i < ranges.size(); ++i)
    for (std::int64_t begin = ranges[i].begin; begin < ranges[i].end; begin += most)
      pieces.push_back({begin, std::min(most, ranges[i].end - begin), i});
  return pieces;
}

// The objects of backend/vector_operations.h in host memory.
std::unique_ptr<Checksums> make_checksums(int threads, std::span<const ChecksumRange> ranges);
std::unique_ptr<NormTotal> make_norm_total();
std::unique_ptr<RangeNorms> make_range_norms(int threads, const Kernels& kernels, std::span<const ElementRange> ranges);
std::unique_ptr<Orthogonalizer> make_orthogonalizer(int threads, const Kernels& kernels,
                                                    std::span<const MatrixRange> matrices, MemoryCount count);

// The optimizer's step. Computes the gradient's norm, the clipping and the trust ratios. Updates the
// weights and the running statistics. Nothing changes if the norm is not finite.
UpdateResult run_update(int threads, const Kernels& kernels, const Update& update, Vector& weights,
                        const Vector& gradients, std::span<const std::unique_ptr<Vector>> state);

}  // namespace ringtrain::cpu
