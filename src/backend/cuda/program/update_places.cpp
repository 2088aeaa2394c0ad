#include "backend/cuda/program/update_places.h"

#include <algorithm>

#include "base/error.h"

namespace ringtrain::cuda {

std::vector<UpdatePlace> update_places(std::span<const UpdateRange> ranges, std::span<const WeightCopy> copies) {
  std::vector<WeightCopy> sorted(copies.begin(), copies.end());
  std::ranges::sort(sorted, {}, [](const WeightCopy& copy) { return copy.place.flat_offset; });
  std::vector<UpdatePlace> places;
  auto copy = sorted.begin();
  for (const UpdateRange& range : ranges) {
    const int number = static_cast<int>(&range - ranges.data());
    std::int64_t done = range.begin;
    const std::int64_t shift = range.direction < 0 ? 0 : range.direction - range.begin;
    const std::int64_t state_shift = range.state() - range.begin;
    const auto without_copy = [&](std::int64_t end) {
      if (end > done)
        places.push_back({.tensor = {.flat_offset = done, .outer = end - done, .inner = 1, .taps = 1, .padded = 1},
                          .weight_decay = range.weight_decay,
                          .range = number,
                          .matrix_factor = range.matrix_factor,
                          .direction_shift = shift,
                          .state_shift = state_shift});
    };
    for (; copy != sorted.end() && copy->place.flat_offset < range.end; ++copy) {
      const TensorPlace& p = copy->place;
      const std::int64_t end = p.flat_offset + p.outer * p.inner * p.taps;
      if (p.flat_offset < done || end > range.end)
        throw Error(cat("the weights [", p.flat_offset, ", ", end, ") have a copy, but the update's range [",
                        range.begin, ", ", range.end, ") or another copy ends within them"));
      without_copy(p.flat_offset);
      places.push_back({p, copy->own, range.weight_decay, copy->own_is_fp32, number, range.matrix_factor, shift,
                        state_shift});
      done = end;
    }
    without_copy(range.end);
  }
  if (copy != sorted.end())
    throw Error(cat("the weights from ", copy->place.flat_offset, " on have a copy, but no update reaches them"));
  return places;
}

}  // namespace ringtrain::cuda
