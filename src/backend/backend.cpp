#include "backend/backend.h"

#include <array>

#include "base/error.h"

namespace ringtrain {
namespace {
constexpr std::array<const char*, 4> names = {"fp32", "tf32", "bf16", "fp16"};
}

const char* pass_name(PassMode mode) {
  switch (mode) {
    case PassMode::training:
      return "training";
    case PassMode::inference:
      return "evaluation";
    case PassMode::statistics:
      return "batch norm's statistics";
  }
  return "?";
}

const char* precision_name(Precision precision) {
  return names[static_cast<std::size_t>(precision)];
}

Precision precision_of(const std::string& name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<Precision>(i);
  throw Error(cat("precision ", name, " is not one of fp32, tf32, bf16, fp16"));
}

void check_norm_groups(std::int64_t micro_batch, std::int64_t group) {
  if (group < 1 || (micro_batch % group != 0 && group % micro_batch != 0))
    throw Error(cat("a micro-batch of ", micro_batch, " holds neither whole batch-norm groups of ", group,
                    " nor an equal part of one"),
                "let one of batch.micro and batch.worker be a multiple of the other");
}

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
