// Which part of an update is this rank's, where several ranks hold the model between them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/range_norms.h"

namespace ringtrain {

struct UpdateShare {
  // The elements of the flat vector that this rank updates, ascending, without overlap; the optimizer keeps state for
  // these only. None: all trained elements.
  std::optional<std::vector<ElementRange>> own = std::nullopt;
  // Sums over the ranks that hold the other parts; the same bits on all of them. Collective. Null: there are none.
  std::function<void(std::span<double>)> sum = {};
  // The state vectors have places for all trained elements, whatever `own` is, as the weights' vector has.
  bool whole_state = false;
  // `values`: elements [begin, begin + size) of a flat vector, of which this rank has its own. Brings the others'.
  // Collective. Null: there are none.
  std::function<void(std::span<float> values, std::int64_t begin)> gather = {};
};

}  // namespace ringtrain
