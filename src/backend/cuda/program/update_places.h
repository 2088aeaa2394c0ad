// This file makes the places that the update's kernel processes. A place is a piece of the flat vector inside one
// range. If the program has a copy of this piece, the place names the copy, and the kernel writes both.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// Describes a program's own copy of a tensor.
struct WeightCopy {
  TensorPlace place;  // own_offset counts from `own`
  void* own = nullptr;
  bool own_is_fp32 = true;
};

// Returns places that cover every element of the ranges once. Throws Error when a copy does not lie inside one range
// (its tensor is not trained, for example), or when two copies overlap.
std::vector<UpdatePlace> update_places(std::span<const UpdateRange> ranges, std::span<const WeightCopy> copies);

}  // namespace ringtrain::cuda
