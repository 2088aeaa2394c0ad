// Operations on flat vectors: checksums, squared norms, and the orthogonal directions of Muon.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace ringtrain {

class Vector;

// The elements [begin, end) of a vector that outlives the Checksums. Both bounds are even, because a word of the
// checksum has two elements.
struct ChecksumRange {
  const Vector* values = nullptr;
  std::int64_t begin = 0, end = 0;
};

// Checksums of ranges of flat vectors (nn/math.h), so that ranks can compare copies without sending them.
class Checksums {
 public:
  virtual ~Checksums() = default;
  // Starts the checksums of the ranges in their present state. A device computes them before later work in the
  // program's stream; the host does not wait.
  virtual void start() = 0;
  // Waits for the newest start(). Returns a checksum for each range, in their order, valid until the next start().
  // Words are counted from the beginning of the vector.
  virtual std::span<const std::uint64_t> values() = 0;
};

// Throws Error if a bound is odd, or if a range begins below 0, ends before it begins, or ends beyond its vector.
void expect_checksum_ranges(std::span<const ChecksumRange> ranges);

// Squared norms of ranges of a flat vector. A range may be a layer, the whole gradient, or a bucket before its sum over
// ranks.

// The elements [begin, end) of a flat vector.
struct ElementRange {
  std::int64_t begin = 0, end = 0;
};
inline std::span<float> part(std::span<float> vector, const ElementRange& elements) {
  return vector.subspan(static_cast<std::size_t>(elements.begin),
                        static_cast<std::size_t>(elements.end - elements.begin));
}

// Sums of squares in double precision. The order of each sum depends on its range only, so the result has the same bits
// each time and on any number of threads. Elements outside the ranges are not read. An infinity or NaN changes the
// result of its own range only.
//
// On a device measure() and fetch() only queue work; the host does not wait. An object holds one result, which the next
// measure() replaces. Streams that work at the same time need an object each.
class RangeNorms {
 public:
  virtual ~RangeNorms() = default;
  virtual std::int64_t size() const = 0;  // number of ranges
  // Measures the ranges of `values`. Throws Error when a range ends beyond the vector. `stream` is the handle of the
  // device's stream that does the work; 0: the program's stream. A bucket is measured in the stream that will sum it.
  virtual void measure(const Vector& values, std::uintptr_t stream = 0) = 0;
  // Measures how far `values` has moved since the last call with the same `before`, which keeps the old values. Adds
  // the norms of values - before to the held result, and sets before = values. With `first`, `before` counts as zeros
  // and the norms replace the result. The ranges must not overlap.
  virtual void measure_change(const Vector& values, Vector& before, bool first, std::uintptr_t stream = 0) = 0;
  // The norms [size()] in the order of the ranges, in the device's memory. Kernels that are queued in the same stream
  // after measure() may read them.
  virtual const double* data() const = 0;
  // Queues the copy of the last norms to the host.
  virtual void fetch() = 0;
  // Returns the norms [size()] after that copy, which it queues if nobody did. Valid until the next measure(),
  // measure_change() or fetch().
  virtual std::span<const double> values() = 0;
};

// Adds the norms of several objects and stores the total in the gradient vector. The total is then summed over the
// ranks together with the gradients.
class NormTotal {
 public:
  virtual ~NormTotal() = default;
  // Adds all norms of the last measure(), in the order of the ranges. `first` begins a new total. On a device the work
  // is queued in `stream`, the stream of measure(), which must be the same in all calls.
  virtual void add(const RangeNorms& norms, bool first, std::uintptr_t stream = 0) = 0;
  // values[at] = the total, in single precision.
  virtual void store(Vector& values, std::int64_t at, std::uintptr_t stream = 0) = 0;
};

// Throws Error when there are no ranges, or when a range is empty or begins below 0.
void expect_ranges(std::span<const ElementRange> ranges);
// Throws Error when a range ends beyond `size` elements.
void expect_within(std::int64_t end_of_last, std::int64_t size);

// Newton-Schulz orthogonalisation of matrices. Muon applies it to its updates.

// Elements [begin, begin + rows x columns) of a flat vector, row-major.
struct MatrixRange {
  std::int64_t begin = 0, rows = 0, columns = 0;
  std::int64_t count() const { return rows * columns; }
  std::int64_t small() const { return std::min(rows, columns); }
  // The time of its products is proportional to smaller side^2 x larger side.
  double cost() const { return static_cast<double>(small()) * static_cast<double>(count()); }
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
