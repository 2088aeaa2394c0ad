// Checksums of ranges of flat vectors (nn/math.h), so that ranks can compare copies without sending them.
#pragma once

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

}  // namespace ringtrain
