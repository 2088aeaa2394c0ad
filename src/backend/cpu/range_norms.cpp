#include "backend/cpu/range_norms.h"

#include "backend/backend.h"

namespace ringtrain::cpu {

CpuRangeNorms::CpuRangeNorms(int threads, const Kernels& kernels, std::span<const ElementRange> ranges)
    : threads_(threads), kernels_(kernels), pieces_(pieces_of(ranges)), sums_(pieces_.size()), norms_(ranges.size()) {
  expect_ranges(ranges);
  for (const ElementRange& range : ranges) end_ = std::max(end_, range.end);
}

// Pieces are added in order, so that the result does not depend on the number of threads.
void CpuRangeNorms::measure(const Vector& values, std::uintptr_t) {
  expect_within(end_, values.size());
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    sums_[i] = kernels_.squared_norm(pieces_[i].count, values.data() + pieces_[i].begin);
  std::fill(norms_.begin(), norms_.end(), 0.0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) norms_[pieces_[i].range] += sums_[i];
}

}  // namespace ringtrain::cpu
