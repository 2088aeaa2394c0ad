#include "backend/cpu/range_norms.h"

#include "backend/backend.h"

namespace ringtrain::cpu {

CpuRangeNorms::CpuRangeNorms(int threads, const Kernels& kernels, std::span<const ElementRange> ranges)
    : threads_(threads), kernels_(kernels), pieces_(pieces_of(ranges)), sums_(pieces_.size()), norms_(ranges.size()) {
  expect_ranges(ranges);
  for (const ElementRange& range : ranges) end_ = std::max(end_, range.end);
}

// Pieces are added in order, so that the result does not depend on the number of threads.
template <class NormOfPiece>
void CpuRangeNorms::add_norms(const NormOfPiece& norm_of_piece) {
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (std::size_t i = 0; i < pieces_.size(); ++i) sums_[i] = norm_of_piece(pieces_[i]);
  for (std::size_t i = 0; i < pieces_.size(); ++i) norms_[pieces_[i].range] += sums_[i];
}

void CpuRangeNorms::measure(const Vector& values, std::uintptr_t) {
  expect_within(end_, values.size());
  std::fill(norms_.begin(), norms_.end(), 0.0);
  add_norms([&](const RangePiece& piece) { return kernels_.squared_norm(piece.count, values.data() + piece.begin); });
}

void CpuRangeNorms::measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t) {
  expect_within(end_, std::min(values.size(), before.size()));
  if (first) std::fill(norms_.begin(), norms_.end(), 0.0);
  add_norms([&](const RangePiece& piece) {
    const float* from = values.data() + piece.begin;
    float* then = before.data() + piece.begin;
    if (!first) return kernels_.squared_change(piece.count, from, then);
    std::copy_n(from, piece.count, then);
    return kernels_.squared_norm(piece.count, from);
  });
}

}  // namespace ringtrain::cpu
