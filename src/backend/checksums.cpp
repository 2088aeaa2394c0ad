#include "backend/checksums.h"

#include "backend/backend.h"
#include "base/error.h"

namespace ringtrain {

void expect_checksum_ranges(std::span<const ChecksumRange> ranges) {
  for (const ChecksumRange& range : ranges)
    if (range.begin < 0 || range.end < range.begin || range.end > range.values->size() || range.begin % 2 != 0 ||
        range.end % 2 != 0)
      throw Error(cat("a checksum of elements [", range.begin, ", ", range.end, ") of a vector of ",
                      range.values->size(), " was asked for, expected an even range inside it"));
}

}  // namespace ringtrain
