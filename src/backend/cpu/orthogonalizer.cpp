#include "backend/cpu/orthogonalizer.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "backend/backend.h"

namespace ringtrain::cpu {

namespace {

std::int64_t padded_bytes(std::int64_t elements) {
  return (elements * static_cast<std::int64_t>(sizeof(float)) + 63) / 64 * 64;
}

double cost(const MatrixRange& m) {
  return static_cast<double>(m.small()) * static_cast<double>(m.count());
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
  std::ranges::stable_sort(matrices_, std::greater<>(), cost);
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
