// Squared norms of ranges of a flat vector. A range may be a layer, the whole gradient, or a bucket before its sum over
// ranks.
#pragma once

#include <cstdint>
#include <span>

namespace ringtrain {

class Vector;

// The elements [begin, end) of a flat vector.
struct ElementRange {
  std::int64_t begin = 0, end = 0;
};

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

}  // namespace ringtrain
