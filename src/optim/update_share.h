// The part of an update that one rank does, if several ranks divide the model between them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/vector_operations.h"

namespace ringtrain {

struct UpdateShare {
  // The elements of the flat vector that this rank updates, in ascending order and without overlap. The optimizer keeps
  // state for these elements only, unless whole_state is true. nullopt: all trained elements. An empty list: none.
  std::optional<std::vector<ElementRange>> own = std::nullopt;
  // Collective. Sums over the ranks that hold the other parts. All of them get the same bits. Null: no other ranks.
  std::function<void(std::span<double>)> sum = {};
  // If true, the state vectors have a place for every trained element, although this rank updates only `own`. An
  // element then has the same index in them as in the vector of weights. If false, they have the elements of `own`
  // only.
  bool whole_state = false;
  // Collective. `values` are the elements [begin, begin + size) of a flat vector. This rank has filled in its own
  // elements. The call fills in the others. Null: no other ranks.
  std::function<void(std::span<float> values, std::int64_t begin)> gather = {};
};

}  // namespace ringtrain
