#include "backend/range_norms.h"

#include "base/error.h"

namespace ringtrain {

void expect_ranges(std::span<const ElementRange> ranges) {
  if (ranges.empty()) throw Error("norms were asked for, but the list of ranges is empty");
  for (const ElementRange& range : ranges)
    if (range.begin < 0 || range.end <= range.begin)
      throw Error(cat("the range [", range.begin, ", ", range.end, ") of a vector has no elements or begins below 0"));
}

void expect_within(std::int64_t end_of_last, std::int64_t size) {
  if (end_of_last > size)
    throw Error(cat("norms of elements up to ", end_of_last, " were asked for, but the vector has ", size));
}

}  // namespace ringtrain
