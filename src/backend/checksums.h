// Checksums of ranges of flat vectors (nn/checksum.h), so that ranks can compare copies without sending them.
#pragma once

#include <cstdint>
#include <span>

namespace ringtrain {

class Vector;

// The elements [begin, end) of a vector, which outlives the Checksums. Both are even: a word of the checksum has two.
struct ChecksumRange {
  const Vector* values = nullptr;
  std::int64_t begin = 0, end = 0;
};

class Checksums {
 public:
  virtual ~Checksums() = default;
  // Takes the checksums of the ranges as they are now. A device does it before whatever it is given next in the
  // program's stream; the host does not wait.
  virtual void start() = 0;
  // Waits for the newest start(): a checksum for each range, in their order; valid until the next start(). Words are
  // counted from the beginning of the vector.
  virtual std::span<const std::uint64_t> values() = 0;
};

// Throws Error when a range is odd, or ends beyond its vector.
void expect_checksum_ranges(std::span<const ChecksumRange> ranges);

}  // namespace ringtrain
