// The operations of backend/vector_operations.h in host memory, and the optimizer's step.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"
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

// Sums of_piece(piece) over the pieces of each range. Pieces are added in order, so the result does not depend on the
// number of threads. `sums` has one element per piece, and `of_ranges` has one per range.
template <class Sum, class OfPiece>
void sum_pieces(int threads, std::span<const RangePiece> pieces, std::vector<Sum>& sums, std::vector<Sum>& of_ranges,
                const OfPiece& of_piece) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::size_t i = 0; i < pieces.size(); ++i) sums[i] = of_piece(pieces[i]);
  std::fill(of_ranges.begin(), of_ranges.end(), Sum{0});
  for (std::size_t i = 0; i < pieces.size(); ++i) of_ranges[pieces[i].range] += sums[i];
}

// Checksums of ranges in host memory.
class CpuChecksums : public Checksums {
 public:
  CpuChecksums(int threads, std::span<const ChecksumRange> ranges);
  void start() override;
  std::span<const std::uint64_t> values() override { return values_; }

 private:
  int threads_;
  std::vector<ChecksumRange> ranges_;
  std::vector<RangePiece> pieces_;
  std::vector<std::uint64_t> sums_, values_;  // sums of the pieces; checksums of the ranges
};

class CpuNormTotal : public NormTotal {
 public:
  void add(const RangeNorms& norms, bool first, std::uintptr_t stream) override;
  void store(Vector& values, std::int64_t at, std::uintptr_t stream) override;

 private:
  double total_ = 0;
};

class CpuRangeNorms : public RangeNorms {
 public:
  CpuRangeNorms(int threads, const Kernels& kernels, std::span<const ElementRange> ranges);
  std::int64_t size() const override { return std::ssize(norms_); }
  void measure(const Vector& values, std::uintptr_t stream) override;
  void measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t stream) override;
  const double* data() const override { return norms_.data(); }
  void fetch() override {}
  std::span<const double> values() override { return norms_; }

 private:
  int threads_;
  const Kernels& kernels_;
  std::int64_t end_ = 0;  // the largest end of a range
  std::vector<RangePiece> pieces_;
  std::vector<double> sums_, norms_;  // sums of the pieces; squared norms of the ranges
};

// Newton-Schulz orthogonalisation with oneDNN. One thread does a whole matrix, so that no sum depends on the number of
// threads.
class CpuOrthogonalizer : public Orthogonalizer {
 public:
  CpuOrthogonalizer(int threads, const Kernels& kernels, std::span<const MatrixRange> matrices, MemoryCount count);
  std::int64_t bytes() const override { return std::ssize(workers_) * worker_bytes_; }
  void allocate() override;
  void run(Vector& values) override;

 private:
  // The three products for one shape.
  struct Products {
    Gemm gram, square, apply;
    std::int64_t scratch_bytes() const;
  };
  // The memory of one thread.
  struct Worker {
    std::map<std::pair<std::int64_t, std::int64_t>, Products> products;  // by rows and columns
    float *product = nullptr, *gram = nullptr, *square = nullptr;
  };
  static Products make_products(const MatrixRange& matrix);
  void orthogonalize(const MatrixRange& matrix, float* x, Worker& worker) const;

  const Kernels& kernels_;
  std::vector<MatrixRange> matrices_;  // the ones that take longest come first
  std::vector<Worker> workers_;
  std::int64_t largest_ = 0, largest_gram_ = 0, worker_bytes_ = 0;  // the first two count elements
  MemoryCount count_;
  Memory memory_;
};

// The optimizer's step (update.cpp). Computes the gradient's norm, the clipping and the trust ratios. Updates the
// weights and the running statistics. Nothing changes if the norm is not finite.
UpdateResult run_update(int threads, const Kernels& kernels, const Update& update, Vector& weights,
                        const Vector& gradients, std::span<const std::unique_ptr<Vector>> state);

}  // namespace ringtrain::cpu
