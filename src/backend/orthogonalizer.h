// Newton-Schulz orthogonalisation of matrices. Muon applies it to its updates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace ringtrain {

class Vector;

// Elements [begin, begin + rows x columns) of a flat vector, row-major.
struct MatrixRange {
  std::int64_t begin = 0, rows = 0, columns = 0;
  std::int64_t count() const { return rows * columns; }
  std::int64_t small() const { return std::min(rows, columns); }
  bool operator==(const MatrixRange&) const = default;
};

// The iteration of Jordan 2024 with the numbers of torch.optim.Muon:
//
//   X = U / max(|U|, epsilon), of the Frobenius norm;  5 times: A = X X^T, X = a X + (b A + c A^2) X
//
// which brings the singular values near 1 (0.7 to 1.2) and keeps the singular vectors. A matrix with more rows than
// columns is its transpose's transpose: A = X^T X, X = a X + X (b A + c A^2).
//
// torch rounds X and the products to bf16, for speed. Here all of it is fp32: at the batches that Muon is for, it costs
// little beside the passes, and the result can be held against a float64 program, and be the same on CPU and GPU, but
// for the rounding of sums.
struct NewtonSchulz {
  static constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f, epsilon = 1e-7f;
  static constexpr int steps = 5;
};

// Orthogonalises matrices. The result of a matrix depends on this matrix alone: it has the same bits whatever the other
// matrices are, and on any number of threads.
class Orthogonalizer {
 public:
  virtual ~Orthogonalizer() = default;
  // Of what allocate() takes beside the vector.
  virtual std::int64_t bytes() const = 0;
  virtual void allocate() = 0;
  // All matrices in place. A device only queues the work.
  virtual void run(Vector& values) = 0;
};

// Throws Error when a matrix has no elements or begins below 0.
void expect_matrices(std::span<const MatrixRange> matrices);

}  // namespace ringtrain
