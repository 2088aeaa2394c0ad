#include "backend/cpu/vector_operations.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "backend/backend.h"
#include "base/rounding.h"
#include "nn/math.h"

namespace ringtrain::cpu {
namespace {

std::uint64_t checksum(const float* values, const RangePiece& piece) {
  std::uint64_t sum = 0;
  for (std::int64_t at = piece.begin; at < piece.begin + piece.count; at += 2) {
    std::uint64_t word;
    std::memcpy(&word, values + at, sizeof word);
    sum += checksum_term(word, static_cast<std::uint64_t>(at / 2));
  }
  return sum;
}

}  // namespace

CpuChecksums::CpuChecksums(int threads, std::span<const ChecksumRange> ranges)
    : threads_(threads),
      ranges_(ranges.begin(), ranges.end()),
      pieces_(pieces_of(ranges)),
      sums_(pieces_.size()),
      values_(ranges.size()) {
  expect_checksum_ranges(ranges_);
}

void CpuChecksums::start() {
  sum_pieces(threads_, pieces_, sums_, values_,
             [&](const RangePiece& piece) { return checksum(ranges_[piece.range].values->data(), piece); });
}

CpuRangeNorms::CpuRangeNorms(int threads, const Kernels& kernels, std::span<const ElementRange> ranges)
    : threads_(threads), kernels_(kernels), pieces_(pieces_of(ranges)), sums_(pieces_.size()), norms_(ranges.size()) {
  expect_ranges(ranges);
  for (const ElementRange& range : ranges) end_ = std::max(end_, range.end);
}

void CpuRangeNorms::measure(const Vector& values, std::uintptr_t) {
  expect_within(end_, values.size());
  sum_pieces(threads_, pieces_, sums_, norms_,
             [&](const RangePiece& piece) { return kernels_.squared_norm(piece.count, values.data() + piece.begin); });
}

void CpuRangeNorms::measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t) {
  expect_within(end_, std::min(values.size(), before.size()));
  const std::vector<double> held = first ? std::vector<double>(norms_.size(), 0.0) : norms_;
  sum_pieces(threads_, pieces_, sums_, norms_, [&](const RangePiece& piece) {
    const float* from = values.data() + piece.begin;
    float* then = before.data() + piece.begin;
    if (!first) return kernels_.squared_change(piece.count, from, then);
    std::copy_n(from, piece.count, then);
    return kernels_.squared_norm(piece.count, from);
  });
  for (std::size_t i = 0; i < norms_.size(); ++i) norms_[i] += held[i];
}

void CpuNormTotal::add(const RangeNorms& norms, bool first, std::uintptr_t) {
  if (first) total_ = 0;
  for (std::int64_t i = 0; i < norms.size(); ++i) total_ += norms.data()[i];
}

void CpuNormTotal::store(Vector& values, std::int64_t at, std::uintptr_t) {
  values.data()[at] = static_cast<float>(total_);
}

namespace {

std::int64_t padded_bytes(std::int64_t elements) {
  return round_up(elements * static_cast<std::int64_t>(sizeof(float)), 64);
}

void scale(std::int64_t n, float factor, float* x) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// y = alpha x + beta y.
void blend(std::int64_t n, float alpha, const float* __restrict x, float beta, float* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = alpha * x[i] + beta * y[i];
}

}  // namespace

std::int64_t CpuOrthogonalizer::Products::scratch_bytes() const {
  return std::max({gram.scratch_bytes(), square.scratch_bytes(), apply.scratch_bytes()});
}

// The Gram matrix [small, small] is X X^T for a wide matrix and X^T X for a tall one.
CpuOrthogonalizer::Products CpuOrthogonalizer::make_products(const MatrixRange& m) {
  const std::int64_t s = m.small();
  const bool wide = m.rows <= m.columns;
  const GemmShape gram{.m = s,
                       .n = s,
                       .k = std::max(m.rows, m.columns),
                       .a_transposed = !wide,
                       .b_transposed = wide,
                       .lda = m.columns,
                       .ldb = m.columns,
                       .ldc = s};
  const GemmShape square{.m = s, .n = s, .k = s, .lda = s, .ldb = s, .ldc = s};
  const GemmShape apply{
      .m = m.rows, .n = m.columns, .k = s, .lda = wide ? s : m.columns, .ldb = wide ? m.columns : s, .ldc = m.columns};
  return {Gemm(gram, 1, 1), Gemm(square, 1, 1), Gemm(apply, 1, 1)};
}

CpuOrthogonalizer::CpuOrthogonalizer(int threads, const Kernels& kernels, std::span<const MatrixRange> matrices,
                                     MemoryCount count)
    : kernels_(kernels),
      matrices_(matrices.begin(), matrices.end()),
      workers_(std::min(static_cast<std::size_t>(threads), matrices.size())),
      count_(std::move(count)) {
  expect_matrices(matrices);
  std::ranges::stable_sort(matrices_, std::greater<>(), &MatrixRange::cost);
  std::int64_t scratch = 0;
  for (Worker& worker : workers_)
    for (const MatrixRange& m : matrices_) {
      auto [products, is_new] = worker.products.try_emplace({m.rows, m.columns});
      if (is_new) products->second = make_products(m);
      scratch = std::max(scratch, products->second.scratch_bytes());
      largest_ = std::max(largest_, m.count());
      largest_gram_ = std::max(largest_gram_, m.small() * m.small());
    }
  worker_bytes_ = padded_bytes(largest_) + 2 * padded_bytes(largest_gram_) + scratch;
}

void CpuOrthogonalizer::allocate() {
  memory_ = Memory(bytes(), count_);
  char* at = memory_.data();
  const auto take = [&at](std::int64_t elements) {
    auto* const values = reinterpret_cast<float*>(at);
    at += padded_bytes(elements);
    return values;
  };
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    at = memory_.data() + static_cast<std::int64_t>(i) * worker_bytes_;
    worker.product = take(largest_);
    worker.gram = take(largest_gram_);
    worker.square = take(largest_gram_);
    for (auto& [shape, products] : worker.products)
      for (Gemm* gemm : {&products.gram, &products.square, &products.apply}) gemm->bind(nullptr, at);
  }
}

void CpuOrthogonalizer::run(Vector& values) {
  if (matrices_.empty()) return;
#pragma omp parallel num_threads(static_cast <int>(workers_.size()))
  {
    Worker& worker = workers_[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic, 1)
    for (std::size_t i = 0; i < matrices_.size(); ++i)
      orthogonalize(matrices_[i], values.data() + matrices_[i].begin, worker);
  }
}

void CpuOrthogonalizer::orthogonalize(const MatrixRange& m, float* x, Worker& worker) const {
  using N = NewtonSchulz;
  const std::int64_t gram_count = m.small() * m.small();
  const bool wide = m.rows <= m.columns;
  auto& [gram, square, apply] = worker.products.at({m.rows, m.columns});
  const float norm = static_cast<float>(std::sqrt(kernels_.squared_norm(m.count(), x)));
  scale(m.count(), 1 / std::max(norm, N::epsilon), x);
  for (int step = 0; step < N::steps; ++step) {
    gram.run(0, x, x, worker.gram);
    square.run(0, worker.gram, worker.gram, worker.square);
    blend(gram_count, N::b, worker.gram, N::c, worker.square);
    if (wide)
      apply.run(0, worker.square, x, worker.product);
    else
      apply.run(0, x, worker.square, worker.product);
    blend(m.count(), 1, worker.product, N::a, x);
  }
}

}  // namespace ringtrain::cpu
