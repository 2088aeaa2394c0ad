#include "backend/vector_operations.h"

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

void expect_matrices(std::span<const MatrixRange> matrices) {
  for (const MatrixRange& m : matrices)
    if (m.begin < 0 || m.rows < 1 || m.columns < 1)
      throw Error(cat("a ", m.rows, " x ", m.columns, " matrix at element ", m.begin,
                      " cannot be orthogonalised, expected at least 1 row, 1 column and an element from 0"));
}

}  // namespace ringtrain
