// What an update's kernel walks over: trained pieces of the flat vector, each within one range, and beside them the
// program's copies that are written with them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/kernels/kernels.h"

namespace ringtrain::cuda {

// A program's own copy of a tensor.
struct WeightCopy {
  TensorPlace place;  // own_offset counts from `own`
  void* own = nullptr;
  bool own_is_fp32 = true;
};

// Covers every element of the ranges once. Throws Error where a copy is of something that is not trained, or was named
// before.
std::vector<UpdatePlace> update_places(std::span<const UpdateRange> ranges, std::span<const WeightCopy> copies);

}  // namespace ringtrain::cuda
