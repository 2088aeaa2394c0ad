// Newton-Schulz orthogonalisation with oneDNN. One thread does a whole matrix, so that no sum depends on the number of
// threads.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/orthogonalizer.h"

namespace ringtrain::cpu {

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

}  // namespace ringtrain::cpu
