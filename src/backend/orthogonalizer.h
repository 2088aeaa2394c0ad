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

// The iteration of Jordan 2024 with the coefficients of torch.optim.Muon:
//
//   X = U / max(|U|, epsilon) with the Frobenius norm |U|;  5 times: A = X X^T, X = a X + (b A + c A^2) X
//
// It moves the singular values near 1 (0.7 to 1.2) and keeps the singular vectors. A matrix with more rows than columns
// uses the transposed form: A = X^T X, X = a X + X (b A + c A^2).
//
// torch rounds X and the products to bf16, for speed. Here everything is fp32. With the large batches of Muon, this
// costs little compared with the passes. The result can then be compared with a float64 program, and it is the same on
// CPU and GPU except for the rounding of sums.
struct NewtonSchulz {
  static constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f, epsilon = 1e-7f;
  static constexpr int steps = 5;
};

// Orthogonalises matrices. The result of a matrix depends on this matrix only. It has the same bits with any other
// matrices and on any number of threads.
class Orthogonalizer {
 public:
  virtual ~Orthogonalizer() = default;
  // Returns the bytes that allocate() takes, without the vector.
  virtual std::int64_t bytes() const = 0;
  virtual void allocate() = 0;
  // Orthogonalises all matrices in place. A device only queues the work.
  virtual void run(Vector& values) = 0;
};

// Throws Error if a matrix has no elements or begins below 0.
void expect_matrices(std::span<const MatrixRange> matrices);

}  // namespace ringtrain
